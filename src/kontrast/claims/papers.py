"""The four papers that "paper A" to "paper D" stand for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper whose claims are measured; ids and docstrings call it by its `letter`."""

    letter: str
    title: str
    authors: str
    year: int | None  # None where the paper bears no date
    link: str  # where it can be read; empty where it is not public
    about: str

    def __str__(self) -> str:
        where = ", ".join(str(part) for part in (self.year, self.link) if part)
        return f"{self.authors}: {self.title}" + (f" ({where})" if where else "")


PAPERS = {
    paper.letter: paper
    for paper in (
        Paper(
            "A",
            "When can we Approximate Wide Contrastive Models with Neural Tangent Kernels and Principal Component "
            "Analysis?",
            "Gautham Govind Anil, Pascal Esser, Debarghya Ghoshdastidar",
            2024,
            "https://arxiv.org/abs/2403.08673",
            "wide contrastive models, their NTK and PCA",
        ),
        Paper(
            "B",
            "Representation Learning Dynamics of Self-Supervised Models",
            "Pascal Esser, Satyaki Mukherjee, Debarghya Ghoshdastidar",
            2023,
            "https://arxiv.org/abs/2309.02011",
            "learning dynamics of self-supervised models",
        ),
        Paper(
            "C",
            "On the Role of Nonlinearity in Training Dynamics of Contrastive Learning on One-layer Network",
            "Yuandong Tian",
            2022,
            "https://arxiv.org/abs/2206.01342",
            "nonlinearity in one-layer contrastive learning",
        ),
        Paper(
            "D",
            "A review of Lee et al. (2019), Wide Neural Networks of Any Depth Evolve as Linear Models Under Gradient "
            "Descent (https://arxiv.org/abs/1902.06720), and of Simon et al. (2021), Neural Tangent Kernel Eigenvalues "
            "Accurately Predict Generalization (https://arxiv.org/abs/2110.03922)",
            "Brandon McKinzie",
            None,
            "",
            "linearised wide networks and learnability",
        ),
    )
}
