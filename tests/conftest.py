"""What holds for every test."""

from hypothesis import HealthCheck, settings

# Time decides nothing: another process may hold this one up in the middle of an example.
settings.register_profile("nbrl", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nbrl")
