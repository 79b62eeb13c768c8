"""Spectra of embeddings: has the representation collapsed, completely or in dimension?"""

from kontrast.spectral.collapse import effective_rank, relative_spread

__all__ = ["effective_rank", "relative_spread"]
