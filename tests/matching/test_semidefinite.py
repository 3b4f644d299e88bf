"""Semidefinite least squares: the minimum, and a proof that holds."""

import numpy as np
import pytest

from notsodeep.matching.semidefinite import nearest_semidefinite


def forms_of(rng, atoms=4, samples=30):
    """Products of numbers of the atoms, at pairs and, first, on the diagonal: [v_k(i) v_l(j) + v_l(i) v_k(j)]/2."""
    values = rng.standard_normal((atoms, samples))
    pairs = np.einsum("ki,lj->klij", values, values)
    i, j = np.triu_indices(samples, 1)
    off = 0.5 * (pairs[:, :, i, j] + pairs[:, :, j, i])
    on = np.einsum("ki,li->kli", values, values)
    return np.concatenate([on, off], axis=2), np.r_[np.ones(samples), np.zeros(len(i))]


def error(forms, target, matrix):
    return float(np.linalg.norm(target - np.einsum("klN,kl->N", forms, matrix)))


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_nearer_than_the_bound(seed):
    rng = np.random.default_rng(seed)
    forms, positive = forms_of(rng)
    target = rng.standard_normal(forms.shape[2])
    found = nearest_semidefinite(forms, target, positive)
    assert found.error == pytest.approx(error(forms, target, found.matrix), rel=1e-9)
    assert np.linalg.eigvalsh(found.matrix).min() > 0.0
    assert found.bound <= found.error * (1 + 1e-12)
    assert found.bound >= found.error * (1 - 1e-4)  # the gap of the proof
    for _ in range(200):  # no matrix nearby or far off does better
        root = rng.standard_normal((4, 4)) * rng.choice([1e-3, 0.1, 1.0])
        near = np.linalg.cholesky(found.matrix + 1e-14 * np.eye(4)) + root * rng.choice([0.01, 0.3])
        for matrix in (root @ root.T, near @ near.T):
            assert error(forms, target, matrix) >= found.bound


@pytest.mark.parametrize("rank", [1, 2])
def test_what_can_be_hit_is_hit(rank):
    rng = np.random.default_rng(7)
    forms, positive = forms_of(rng)
    root = rng.standard_normal((4, rank))
    target = np.einsum("klN,kl->N", forms, root @ root.T)
    found = nearest_semidefinite(forms, target / np.linalg.norm(target), positive)
    assert found.error < 1e-5
    np.testing.assert_allclose(found.matrix * np.linalg.norm(target), root @ root.T, atol=1e-3)
    assert found.rank == rank


def test_where_zero_is_nearest_the_bound_says_so():
    rng = np.random.default_rng(3)
    forms, positive = forms_of(rng)
    target = -np.einsum("klN,kl->N", forms, np.eye(4))
    target /= np.linalg.norm(target)
    found = nearest_semidefinite(forms, target, positive)
    assert found.error == pytest.approx(1.0, abs=1e-4)
    assert found.bound == pytest.approx(1.0, abs=1e-4)
