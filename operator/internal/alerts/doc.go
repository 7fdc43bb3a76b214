// Package alerts has the tests of the chart's alert rules and dashboards.
//
// A rule is worth what it does with the series of a real process. So each scene here
// starts real programs on a real API server, scrapes their /metrics, breaks something,
// and scrapes again. promtool then says which alerts fire on these scrapes: none before
// the fault, and afterwards those that the scene names. Nothing in its input is invented:
// a value is one that a process said, and stays what it was until the next scrape.
package alerts
