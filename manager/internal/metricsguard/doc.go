// Package metricsguard lets those read /metrics whom RBAC lets get it. [Guard] asks the API
// server who sends a token and what they may; most of it bounds what made-up tokens cost.
package metricsguard
