"""Property tests of the protocol: pure and quick, on machines that are busy with others."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A deadline would judge the machine's other work, not this code.
settings.register_profile("protocol", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("protocol")
