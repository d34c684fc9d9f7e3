"""The other brokers: which there are, how busy, and who takes over what one of them leaves behind.

Start reading at `report.py`, what each broker says of itself, and at `takeover.py`, what follows when it is gone.
"""
