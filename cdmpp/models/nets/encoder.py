"""A pre-norm transformer encoder over sets of leaves."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class LeafEncoderLayer(nn.Module):
    """Pre-norm self-attention and a two-layer perceptron, each with a residual connection."""

    def __init__(self, hidden: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self._heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.attention_out = nn.Linear(hidden, hidden)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.expand = nn.Linear(hidden, feed_forward)
        self.contract = nn.Linear(feed_forward, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor, mask: Tensor) -> Tensor:
        """Returns the next state.

        Args:
            state: float32 [batch, leaf, hidden].
            mask: bool [batch, leaf], True for leaves, False for padding, which is not attended to.
        """
        batch, leaf, hidden = state.shape
        packed = self.query_key_value(self.attention_norm(state))
        query, key, value = packed.view(batch, leaf, 3, self._heads, hidden // self._heads).permute(
            2, 0, 3, 1, 4
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask[:, None, None, :]
        )
        mixed = mixed.transpose(1, 2).reshape(batch, leaf, hidden)
        state = state + self.dropout(self.attention_out(mixed))
        inner = functional.gelu(self.expand(self.feed_forward_norm(state)))
        following: Tensor = state + self.dropout(self.contract(self.dropout(inner)))
        return following


class Encoder(nn.Module):
    """A stack of encoder layers with a final layer norm; accepts any number of leaves."""

    def __init__(
        self, *, hidden: int, layers: int, heads: int, feed_forward: int, dropout: float
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            LeafEncoderLayer(hidden, heads, feed_forward, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)

    def forward(self, state: Tensor, mask: Tensor) -> Tensor:
        """Returns float32 [leaf, hidden].

        Args:
            state: float32 [leaf, hidden], the leaves of a batch, program by program.
            mask: bool [program, most leaves], True for as many places as the program has leaves.
        """
        if len(self.layers):
            padded = state.new_zeros((*mask.shape, state.shape[-1]))
            padded[mask] = state
            for layer in self.layers:
                padded = layer(padded, mask)
            state = padded[mask]
        normed: Tensor = self.norm(state)
        return normed
