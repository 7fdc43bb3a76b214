package session

// No test waits until a ticket is settled.
func init() { settle = 1 }
