"""A Comparison as text: one module per format, and the words that they share.

Nothing here judges: verdicts are those of `tcbench.analysis.compare`. Whatever a record may contain is escaped for
where it is going. This file imports none of them, as `outcome` is imported at the start of every command.
"""
