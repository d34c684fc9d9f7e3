"""Who may do what. One question, asked in one place: `authorize(role, action, resource)`.

Every protocol command and every REST route asks an `Authorizer`; which one is the runtime's choice, and
standalone's answers yes. May import `magnetar.environment` and `magnetar.naming`. Start with `authorizer.py`.
"""
