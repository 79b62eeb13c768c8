"""Tangent kernels: the empirical NTK of the papers' MLP, layer by layer, without a Jacobian."""

from kontrast.kernels.empirical import empirical_ntk, empirical_ntk_trace

__all__ = ["empirical_ntk", "empirical_ntk_trace"]
