"""Training FLOPs of encoder-decoders."""


def training_flops(
    length: int,
    targets: int,
    *,
    layers: tuple[int, int],
    hidden: int,
    inner: tuple[int, int],
    feed_forward: tuple[int, int],
    maps: int,
    vocabulary: int,
) -> int:
    """Return the matrix-product FLOPs of one row of one training step, 3 x forward.

    3 [L s (8hi + 2mhf + 4si) + L' (4shi + t (12hi + 2mhf + 2ti + 4si)) + 2thV], with L layers of the encoder on s tokens and
    L' of the decoder on t, whose self-attention counts half, as it is causal.

    Args:
      length: s.
      targets: t.
      layers: L and L'.
      hidden: h.
      inner: i, heads times their width, in each stack.
      feed_forward: f in each stack.
      maps: m, matrices of a feed-forward network.
      vocabulary: V.
    """
    encoder_layer, decoder_layer = (
        (12 if decoder else 8) * hidden * i + 2 * maps * hidden * f + 4 * length * i + (2 * targets * i if decoder else 0)
        for decoder, i, f in zip((False, True), inner, feed_forward, strict=True)
    )
    decoder = layers[1] * (4 * length * hidden * inner[1] + targets * decoder_layer)
    return 3 * (layers[0] * length * encoder_layer + decoder + 2 * targets * hidden * vocabulary)
