"""FLOPs of calls, counted while they run."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from notsodeep.models.cost import operations

DRAW = torch.Generator().manual_seed(0)
DENSE = torch.randn(5, 7, generator=DRAW)
SPARSE = (DENSE * (torch.rand(5, 7, generator=DRAW) < 0.4)).to_sparse()
COUNT = SPARSE._nnz()
QUERY, TOKENS = torch.ones(4, 2, 16, 8), torch.ones(4, 16, 8)
LAYER = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
MATRIX, VECTOR, BIAS = torch.ones(7, 3), torch.ones(7), torch.ones(5, 3)

CALLS = {
    "dense": (lambda: DENSE @ MATRIX, 2 * 5 * 7 * 3),
    "sparse": (lambda: torch.sparse.mm(SPARSE, MATRIX), 2 * COUNT * 3),
    "sparse, @": (lambda: SPARSE @ MATRIX, 2 * COUNT * 3),
    "sparse, rows": (lambda: SPARSE.to_sparse_csr() @ MATRIX, 2 * COUNT * 3),
    "plus, rows": (lambda: torch.addmm(BIAS, SPARSE.to_sparse_csr(), MATRIX), 2 * COUNT * 3),
    "plus": (lambda: torch.addmm(BIAS, DENSE, MATRIX), 2 * 5 * 7 * 3),
    "dense and sparse": (lambda: torch.ones(4, 5) @ SPARSE, 2 * COUNT * 4),
    "dense and sparse, rows": (lambda: torch.ones(4, 5) @ SPARSE.to_sparse_csr(), 2 * COUNT * 4),
    "sparse plus": (lambda: torch.sparse.addmm(BIAS, SPARSE, MATRIX), 2 * COUNT * 3),
    "matrix and vector": (lambda: torch.mv(DENSE, VECTOR), 2 * 5 * 7),
    "@ vector": (lambda: DENSE @ VECTOR, 2 * 5 * 7),
    "sparse and vector": (lambda: SPARSE @ VECTOR, 2 * COUNT),
    "sparse and vector, rows": (lambda: SPARSE.to_sparse_csr() @ VECTOR, 2 * COUNT),
    "dot": (lambda: torch.dot(VECTOR, VECTOR), 2 * 7),
    "plus, vector": (lambda: torch.addmv(torch.ones(5), DENSE, VECTOR), 2 * 5 * 7),
    "attention": (lambda: scaled_dot_product_attention(QUERY, QUERY, QUERY), 2 * 2 * 4 * 2 * 16 * 16 * 8),
    "a layer of attention": (
        lambda: LAYER(TOKENS, TOKENS, TOKENS, need_weights=False),
        2 * 4 * 16 * (8 * 24 + 8 * 8 + 2 * 16 * 8),
    ),
    "two of them": (lambda: torch.dot(DENSE @ VECTOR, DENSE @ VECTOR), 2 * (2 * 5 * 7) + 2 * 5),
}


@pytest.mark.parametrize(("call", "count"), CALLS.values(), ids=CALLS)
@pytest.mark.filterwarnings("ignore:Sparse")  # CSR tensors are in beta
def test_products_are_counted(call, count):
    assert operations(call) == count
