"""Networks of finite width: torch modules, and the compiler between them."""
