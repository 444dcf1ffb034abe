# Shows: a sequence decoded token by token on the device, with an early stop. The whole loop is one
# graph: the next token is chosen, stored and compared with the end token, all without the host.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit[cuda13]"]
# ///

import time

import cupy as cp
import numpy as np

from graphjit import graphed
from graphjit.control import while_loop

N_TOKENS, WIDTH, MAX_LENGTH = 1000, 256, 100
END = 0


def decode(model, state, token):
    """Return up to MAX_LENGTH tokens that follow ``token``, and how many there are."""
    embeddings, w_in, w_state, w_out = model

    def goes_on(carry):
        _, token, _, n = carry
        return (token != END) & (n < MAX_LENGTH)

    def step(carry):
        state, token, tokens, n = carry
        state = cp.tanh(embeddings[token] @ w_in + state @ w_state)
        token = cp.argmax(state @ w_out)
        tokens[n] = token
        return state, token, tokens, n + 1

    start = (state, token, cp.full(MAX_LENGTH, END), cp.zeros((), "i8"))
    _, _, tokens, n = while_loop(goes_on, step, start)
    return tokens, n


def new_model(rng):
    shapes = [(N_TOKENS, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, N_TOKENS)]
    model = [cp.asarray(rng.standard_normal(shape, "f4")) for shape in shapes]
    model[1] /= WIDTH**0.5
    model[2] /= WIDTH**0.5
    model[3][:, END] *= 4  # sequences end somewhere
    return model


def seconds(function):
    function(model, *prompts[0])
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for state, token in prompts:
        function(model, state, token)
    cp.cuda.Device().synchronize()
    return time.perf_counter() - start


graphed_decode = graphed(decode)
rng = np.random.default_rng(0)
model = new_model(rng)
prompts = [
    (cp.asarray(rng.standard_normal(WIDTH, "f4")), cp.asarray(rng.integers(1, N_TOKENS)))
    for _ in range(50)
]

lengths = set()
for state, token in prompts:
    tokens, n = graphed_decode(model, state, token)
    expected, expected_n = decode(model, state, token)
    assert np.array_equal(cp.asnumpy(tokens), cp.asnumpy(expected))
    assert int(n) == int(expected_n)
    assert END in tokens[: int(n)] or int(n) == MAX_LENGTH
    lengths.add(int(n))
assert len(lengths) > 1
assert graphed_decode.cache_info().misses == 1
print(f"{len(prompts)} sequences of {min(lengths)} to {max(lengths)} tokens, one launch each")
print(f"graphed: {seconds(decode) / seconds(graphed_decode):.1f} times as fast as eager")
