import re

from comparisons import sides

from tcbench.analysis.compare import compare
from tcbench.views.comparison.github import MOST_OF_A_KIND, command, github

COMMAND = re.compile(r"::(error|warning|notice) title=([^:,]*)::(.*)")


def commands(text: str) -> list[tuple[str, str, str]]:
    assert text.endswith("\n")
    return [COMMAND.fullmatch(line).groups() for line in text.splitlines()]


def test_escaping_is_that_of_github_s_toolkit():
    assert command("error", "a: b, c%\n", "d: e, f%\r\n") == "::error title=a%3A b%2C c%25%0A::d: e, f%25%0D%0A"


def test_no_more_of_a_kind_than_are_shown():
    found = commands(github(compare(*sides({f"c{n}": share for n in range(30) for share in (0.9,)}))))
    assert sum(kind == "error" for kind, _, _ in found) == MOST_OF_A_KIND
    title, message = found[MOST_OF_A_KIND - 1][1:]
    assert title == "tcbench%3A 21 more"
    assert message.count("%0A") == 20
    improved = commands(github(compare(*sides({f"c{n}": 1.2 for n in range(30)}))))
    assert len(improved) == MOST_OF_A_KIND
