"""End-to-end tests: one suite, two back ends."""
