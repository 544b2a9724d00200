"""The client for `async` and `await`. `souk._sync` is made from it by sync.py."""
