"""Every registered verdict a second time, from tables and registrations alone (`make audit`);
imports no package.
"""
