"""Quality measurements of the dashboard: jobs in processes of their own, and what they found."""
