"""The losses as slow loops over Python floats, one line per symbol of the definitions."""

from __future__ import annotations

import math

import torch


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def norm(a):
    return math.sqrt(dot(a, a))


def cosine(a, b, delta=0.0):
    return dot(a, b) / ((norm(a) + delta) * (norm(b) + delta))


def linear(s_pos, s_neg, weight, temperature):
    return sum(w * s for w, s in zip(weight, s_neg, strict=True)) - sum(s_pos)


def ratios(s_pos, s_neg, weight, temperature):
    mass = sum(w * math.exp(s / temperature) for w, s in zip(weight, s_neg, strict=True))
    return [math.exp(s / temperature) / (math.exp(s / temperature) + mass) for s in s_pos]


def softmax(s_pos, s_neg, weight, temperature):
    return -sum(ratios(s_pos, s_neg, weight, temperature))


def log_softmax(s_pos, s_neg, weight, temperature):
    return -sum(math.log(r) for r in ratios(s_pos, s_neg, weight, temperature))


LINKS = {"linear": linear, "softmax": softmax, "log_softmax": log_softmax}


def contrastive(anchor, positives, negatives, weight, *, similarity, link, delta, temperature):
    """Paper A, eq. (1)."""
    n = len(anchor)
    weights = torch.ones(negatives.shape[:2]).tolist() if weight is None else weight.tolist()
    anchor, positives, negatives = anchor.tolist(), positives.tolist(), negatives.tolist()

    def s(a, b):
        return dot(a, b) if similarity == "dot" else cosine(a, b, delta)

    total = 0.0
    for i in range(n):
        s_pos = [s(anchor[i], p) for p in positives[i]]
        s_neg = [s(anchor[i], q) for q in negatives[i]]
        total += LINKS[link](s_pos, s_neg, weights[i], temperature)
    return total / n


def nt_xent(view_a, view_b, *, temperature, negatives, symmetric):
    n = len(view_a)
    views = [view_a.tolist(), view_b.tolist()]
    losses = []
    for anchor_view in (0, 1) if symmetric else (0,):
        own, other = views[anchor_view], views[1 - anchor_view]
        for i in range(n):
            twin = math.exp(cosine(own[i], other[i]) / temperature)
            mass = 0.0
            for j in range(n):
                if j == i:
                    continue
                if negatives in ("both", "cross"):
                    mass += math.exp(cosine(own[i], other[j]) / temperature)
                if negatives in ("both", "intra"):
                    mass += math.exp(cosine(own[i], own[j]) / temperature)
            losses.append(-math.log(twin / (twin + mass)))
    return sum(losses) / len(losses)


def moco(query, key, queue, *, temperature):
    losses = []
    for q, k in zip(query.tolist(), key.tolist(), strict=True):
        twin = math.exp(cosine(q, k) / temperature)
        mass = sum(math.exp(cosine(q, c) / temperature) for c in queue.tolist())
        losses.append(-math.log(twin / (twin + mass)))
    return sum(losses) / len(losses)


def supcon(features, labels, *, temperature):
    rows = [(label, row) for label, views in zip(labels.tolist(), features.tolist(), strict=True) for row in views]
    losses = []
    for i, (label, row) in enumerate(rows):
        others = [(other_label, cosine(row, other)) for j, (other_label, other) in enumerate(rows) if j != i]
        log_mass = math.log(sum(math.exp(s / temperature) for _, s in others))
        log_probabilities = [s / temperature - log_mass for other_label, s in others if other_label == label]
        if log_probabilities:
            losses.append(-sum(log_probabilities) / len(log_probabilities))
    return sum(losses) / len(losses) if losses else 0.0


def spectral_contrastive(view_a, view_b):
    n = len(view_a)
    a, b = view_a.tolist(), view_b.tolist()
    attraction = -2 * sum(dot(a[i], b[i]) for i in range(n)) / n
    repulsion = sum(dot(a[i], b[j]) ** 2 for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    return attraction + repulsion


def covariance(columns_a, columns_b, i, j, divisor):
    mean_a, mean_b = sum(columns_a[i]) / len(columns_a[i]), sum(columns_b[j]) / len(columns_b[j])
    return sum((x - mean_a) * (y - mean_b) for x, y in zip(columns_a[i], columns_b[j], strict=True)) / divisor


def vicreg(view_a, view_b, *, weights, gamma, epsilon):
    n, z = view_a.shape
    invariance = sum((x - y) ** 2 for x, y in zip(view_a.flatten().tolist(), view_b.flatten().tolist(), strict=True))
    variance, redundancy = 0.0, 0.0
    for view in (view_a, view_b):
        c = view.T.tolist()
        for i in range(z):
            variance += max(0.0, gamma - math.sqrt(covariance(c, c, i, i, n - 1) + epsilon)) / (2 * z)
            redundancy += sum(covariance(c, c, i, j, n - 1) ** 2 for j in range(z) if j != i) / z
    return weights[0] * invariance / (n * z) + weights[1] * variance + weights[2] * redundancy


def barlow_twins(view_a, view_b, *, redundancy, epsilon):
    n, z = view_a.shape
    a, b = view_a.T.tolist(), view_b.T.tolist()
    total = 0.0
    for i in range(z):
        for j in range(z):
            std_a = math.sqrt(covariance(a, a, i, i, n) + epsilon)
            std_b = math.sqrt(covariance(b, b, j, j, n) + epsilon)
            C = covariance(a, b, i, j, n) / (std_a * std_b)
            total += (1 - C) ** 2 if i == j else redundancy * C**2
    return total
