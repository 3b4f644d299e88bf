"""Fixed points z = f(z): solvers, the loop that they run in, and exact gradients."""
