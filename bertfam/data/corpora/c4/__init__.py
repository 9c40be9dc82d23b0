"""Cleaning web text as C4 was cleaned (Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.2)."""
