package protocol

// The recorder begins a connection with an HTTP/1.1 request that upgrades it to
// [Upgrade]: a POST of [Path] with the token of its Pod (Authorization: Bearer) and these
// headers. The collector answers 101 and the number of the frame that it wants next
// ([HeaderNext]), and after that both send frames. With 4xx but 429 the session is refused.
// After anything else the recorder tries again.
const (
	Upgrade = "admitkit-session/1"
	Path    = "/v1/session"
	// HeaderTicket has the ticket. HeaderSecret has a random text that the recorder makes
	// when it starts: by it the collectors know the session again, after the ticket was
	// redeemed.
	HeaderTicket = "Admitkit-Ticket"
	HeaderSecret = "Admitkit-Secret"
	HeaderNext   = "Admitkit-Next"
)
