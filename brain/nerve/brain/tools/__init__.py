"""How a Brain reaches what runs its tools: messages, routes and the executors behind them."""
