"""The scorecard of the talk's claims."""
