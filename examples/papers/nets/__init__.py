"""Networks that the papers train; `catalogue` names them."""
