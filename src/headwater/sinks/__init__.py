"""Places outside where results go; each keeps the contract of `headwater.sink`."""
