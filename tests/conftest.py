"""What holds for every test: a busy machine fails none, so hypothesis looks at no clock."""

from contextlib import suppress

with suppress(ImportError):  # the checks on GPUs run without hypothesis
    from hypothesis import HealthCheck, settings

    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")
