"""Quality of service: what tiers of tenants are promised, and what keeps the promises."""
