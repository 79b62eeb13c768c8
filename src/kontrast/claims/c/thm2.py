"""C.thm2: the bound on the roughness of A(w) by the density at the plane of a filter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.c.populations import FORMS, TEMPERATURES, Population, populations
from kontrast.claims.evidence import Evidence, Panel, Verdict, corrected, curve, informative, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest
from kontrast.linalg import fit_power_law
from kontrast.patterns import roughness_bound

RADII = tuple(np.geomspace(1e-3, 1e2, 16))
MEASURED_RADII = (0.05, 1.0, 20.0)  # at which differences of A(w) are taken, in the plane
GREATEST_GAP = 0.25  # of A(w) at an LME, in units of C_0²: at most the variance of 0 ≤ h ≤ C_0


@claim(
    "C.thm2",
    source="Paper C, Theorem 2, (80) to (86)",
    title="The roughness of A(w) is bounded by the density at the plane",
    printed="If ‖x‖ ≤ C_0, then ρ(w) ≤ C_0³ vol(C_0) r(w, α)/π.",
    corrected="C_0³ must be C_0²: (82) has one C_0 too many, as ρ has the unit of x squared and vol(C_0)·r has none. "
    "The sharp bound is C_0^(d+2) V_(d−1) r/(d + 1) with V the volume of the unit ball, about √(π/2d) of the other; "
    "nothing smaller is true. A bound of C_0²/4 or more cannot help Theorem 1, and for data evenly spread in a ball it "
    "is C_0²/π.",
    recorded=Verdict.CORRECTED,
)
def theorem_2(setting: Setting) -> Evidence:
    """ρ = E[h]‖M‖ of populations known exactly, beside the three bounds; in the plane also by differences of A(w)."""
    dims = setting.pick(quick=(2, 3, 8, 32), full=(2, 3, 4, 8, 16, 32, 64), paper=(2, 3, 4, 8, 16, 32, 64, 128))
    found = [populations(d) for d in dims]
    data = _shares(found)
    in_plane = {name: _by_differences(one, 1.0) for name, one in found[0].items()}
    scaled = [_by_differences(found[0]["uniform in a ball"], radius) for radius in MEASURED_RADII]
    lumps = [by_name["two lumps in a thin mist"].moments for by_name in found]
    balls = [by_name["uniform in a ball"].moments for by_name in found]
    violated = (data.printed > 1).any(["population", "d"])
    uniform = data.corrected.sel(population="uniform in a ball").isel(radius=0)
    error = largest(*(abs(rho / found[0][name].moments.roughness - 1) for name, rho in in_plane.items()))
    in_ball = float((uniform * 2 * uniform.d).isel(d=-1))
    over_gap = largest(*(m.corrected_bound / m.gap for m in lumps))
    return judged(
        printed("worst_share_printed", float(data.printed.max()), "largest ρ over the printed bound", high=1 + 1e-9),
        corrected("worst_share_corrected", float(data.corrected.max()), "largest ρ over that with C_0²", high=1 + 1e-9),
        corrected("worst_share_sharp", float(data.sharp.max()), "largest ρ over the sharp one", low=0.9, high=1 + 1e-9),
        corrected("exponent_of_radius", fit_power_law(MEASURED_RADII, scaled), "ρ grows as C_0²", low=1.99, high=2.01),
        corrected("difference_error", error, "ρ = E[h]‖M‖ against differences of A(w): relative error", high=0.03),
        corrected("share_in_a_ball_times_2d", in_ball, "ball: 2d ρ over the bound with C_0²", low=0.8, high=1.2),
        informative("bound_over_gap_of_two_lumps", over_gap, "bound with C_0² over the gap of two lumps", high=1),
        *shown(
            largest_radius_where_printed_fails=float(data.radius.where(violated).max()),
            printed_fails_below_for_a_disc=float(uniform.isel(d=0)),
            share_of_a_gaussian_in_most_dimensions=float(data.corrected.sel(population="Gaussian, cut off")[-1, 0]),
            bound_over_greatest_gap_in_a_ball=min(m.corrected_bound for m in balls) / GREATEST_GAP,
        ),
        data=data,
        panels=[_radius_panel(data), _dimension_panel(data)],
        setting={"d": list(dims), "radii": list(RADII), "temperatures": list(TEMPERATURES)},
    )


def _shares(found: Sequence[Mapping[str, Population]]) -> xr.Dataset:
    """ρ over each bound by population, dimension and radius; `found` has one entry per dimension."""
    names = list(found[0])
    shares = [[[by_name[name].moments.shares(radius) for radius in RADII] for by_name in found] for name in names]
    dims = ("population", "d", "radius")
    return xr.Dataset(
        {form: (dims, np.array([[[s[form] for s in row] for row in rows] for rows in shares])) for form in FORMS},
        coords={"population": names, "d": [by_name[names[0]].d for by_name in found], "radius": list(RADII)},
    )


def _by_differences(population: Population, radius: float) -> float:
    """‖(A(v) − A(w))w‖/‖v − w‖ in the plane, by midpoints in polar coordinates; v is about half a degree from w."""
    n_angles, n_radii, cells = 3200, 400, 5
    width, step = 2 * math.pi / n_angles, radius / n_radii
    angles = (torch.arange(n_angles, dtype=torch.float64) + 0.5) * width
    r = (torch.arange(n_radii, dtype=torch.float64) + 0.5) * step
    x = torch.stack([angles.cos(), angles.sin()], dim=1)[:, None] * r[:, None]  # (angles, radii, 2)
    mass = population.density(x / radius) / radius**2 * r * step * width
    first, second = torch.einsum("ar,ari->ai", mass, x), torch.einsum("ar,ari,arj->aij", mass, x, x)

    def covariance(v: Tensor) -> Tensor:
        inside = (torch.stack([angles.cos(), angles.sin()], dim=1) @ v > 0).double()
        mean = inside @ first
        return torch.einsum("a,aij->ij", inside, second) - torch.outer(mean, mean)

    w, found = torch.tensor([1.0, 0.0], dtype=torch.float64), []
    for turn in (cells * width, -cells * width):
        v = torch.tensor([math.cos(turn), math.sin(turn)], dtype=torch.float64)
        found.append(((covariance(v) - covariance(w)) @ w) / (v - w).norm())
    return float((found[0] - found[1]).norm() / 2)  # the second order cancels


def _radius_panel(data: xr.Dataset) -> Panel:
    chosen = ("uniform in a ball", "thin slab and far lump")
    plane = data.isel(d=0)
    curves = (
        *(curve(f"printed, {name}", plane.radius, plane.printed.sel(population=name)) for name in chosen),
        *(curve(f"C_0², {name}", plane.radius, plane.corrected.sel(population=name), "plain") for name in chosen),
        curve("violated above", plane.radius, np.ones(plane.sizes["radius"]), "dashed"),
    )
    return Panel("In the plane: ρ over its bounds", "radius C_0", "ρ over the bound", curves)


def _dimension_panel(data: xr.Dataset) -> Panel:
    at_one, dims = data.corrected.isel(radius=0), [int(d) for d in data.d]
    sharp = [roughness_bound(1, 1, d, form="sharp").value / roughness_bound(1, 1, d).value for d in dims]
    curves = (
        *(curve(str(name), data.d, at_one.sel(population=name)) for name in data.population.values),
        curve("the sharp bound over it", data.d, sharp, "dashed"),
        curve("1/2d", data.d, 1 / (2 * data.d), "dashed"),
    )
    return Panel("ρ over the bound with C_0²", "dimension d", "ρ over the bound", curves)
