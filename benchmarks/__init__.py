"""Programs that measure bertfam beside its peers; see README.md here."""
