"""Settings of every test run: the claims plugin and one Hypothesis profile."""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ("support.capabilities",)

# No deadline: two cores are shared with real processes. CI repeats the same examples at every run.
settings.register_profile(
    "nerve",
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("nerve")
