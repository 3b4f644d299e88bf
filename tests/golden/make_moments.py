"""Write moments.json: Gaussian moments of every activation by mpmath, 30 digits, from the definition.

Independent of the package: the functions are written out again here, e2 and s2 by Stein's identity (no derivative of φ),
E[φ'²] with a derivative written by hand. Run: python tests/golden/make_moments.py
"""

import json
import pathlib

import mpmath as mp

mp.mp.dps = 30
s2pi = mp.sqrt(2 * mp.pi)
PHI = {
    "tanh": (mp.tanh, lambda x: mp.sech(x) ** 2, [0]),
    "erf": (mp.erf, lambda x: 2 / mp.sqrt(mp.pi) * mp.exp(-x * x), [0]),
    "sigmoid": (lambda x: 1 / (1 + mp.exp(-x)), lambda x: 1 / (2 + mp.exp(x) + mp.exp(-x)), [0]),
    "softplus": (lambda x: mp.log1p(mp.exp(-abs(x))) + max(x, 0), lambda x: 1 / (1 + mp.exp(-x)), [0]),
    "arctan": (mp.atan, lambda x: 1 / (1 + x * x), [0]),
    "gelu": (lambda x: x * mp.ncdf(x), lambda x: mp.ncdf(x) + x * mp.npdf(x), [0]),
    "silu": (lambda x: x / (1 + mp.exp(-x)), lambda x: (1 + mp.exp(-x) * (1 + x)) / (1 + mp.exp(-x)) ** 2, [0]),
    "gaussian": (lambda x: mp.exp(-x * x / 2), lambda x: -x * mp.exp(-x * x / 2), [0]),
    "relu": (lambda x: max(x, 0), lambda x: 1 if x > 0 else 0, [0]),
    "leaky_relu:0.1": (lambda x: x if x > 0 else mp.mpf(0.1) * x, lambda x: 1 if x > 0 else mp.mpf(0.1), [0]),
    "abs": (abs, mp.sign, [0]),
    "elu": (lambda x: x if x > 0 else mp.expm1(x), lambda x: 1 if x > 0 else mp.exp(x), [0]),
    "softsign": (lambda x: x / (1 + abs(x)), lambda x: 1 / (1 + abs(x)) ** 2, [0]),
    "hard_tanh:0.75,1.2": (
        lambda x: mp.mpf(0.75) * min(max(x, -mp.mpf(1.2)), mp.mpf(1.2)),
        lambda x: mp.mpf(0.75) if abs(x) < mp.mpf(1.2) else 0,
        [-mp.mpf(1.2), 0, mp.mpf(1.2)],
    ),
    "polynomial:0.5,1,0.25,-0.125": (lambda x: mp.mpf(0.5) + x + x**2 / 4 - x**3 / 8, lambda x: 1 + x / 2 - 3 * x**2 / 8, [0]),
}
TAUS = [1e-3, 0.05, 1.0, 30.0, 1e3]


def expectation(g, tau, kinks):
    cuts = {mp.mpf(c) for c in kinks}
    for c in kinks:
        cuts |= {c + sign * mp.mpf(2) ** k for k in range(-2, 15) for sign in (-1, 1)}
    cuts |= {tau * mp.mpf(k) for k in range(-13, 14)}
    limit = 13 * tau
    places = sorted(c for c in cuts if -limit <= c <= limit)
    return mp.quad(lambda u: g(u) * mp.exp(-((u / tau) ** 2) / 2) / (s2pi * tau), places, method="gauss-legendre", maxdegree=5)


def moments(f, df, kinks, tau):
    return {
        "mean": expectation(f, tau, kinks),
        "e1": expectation(lambda u: u * f(u), tau, kinks) / tau**2,
        "e2": expectation(lambda u: ((u / tau) ** 2 - 1) * f(u), tau, kinks) / tau**2,
        "gamma2": expectation(lambda u: f(u) ** 2, tau, kinks),
        "s2": expectation(lambda u: ((u / tau) ** 2 - 1) * f(u) ** 2, tau, kinks) / tau**2,
        "q": expectation(lambda u: df(u) ** 2, tau, kinks),
    }


def main() -> None:
    records = []
    for name, (f, df, kinks) in PHI.items():
        for t in TAUS:
            values = moments(f, df, kinks, mp.mpf(t))
            records.append({"activation": name, "tau": t, **{k: mp.nstr(v, 20) for k, v in values.items()}})
    header = {"made by": "tests/golden/make_moments.py", "mpmath": mp.__version__, "digits": mp.mp.dps}
    path = pathlib.Path(__file__).with_name("moments.json")
    path.write_text(json.dumps({"provenance": header, "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
