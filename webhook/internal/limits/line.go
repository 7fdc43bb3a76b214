package limits

// line is a queue from whose middle entries may leave, too. Each entry has a spot,
// which is part of it, so that to join and to leave take no memory.
type line[T any] struct {
	first, last *spot[T]
	length      int
}

// spot is where an entry stands, in one line at most.
type spot[T any] struct {
	who           *T
	in            *line[T]
	before, after *spot[T]
}

// join puts who at the end of a line. It leaves the line in which it stands.
func (p *spot[T]) join(l *line[T], who *T) {
	p.leave()
	*p = spot[T]{who: who, in: l, before: l.last}
	if l.last == nil {
		l.first = p
	} else {
		l.last.after = p
	}
	l.last = p
	l.length++
}

// leave takes the entry out of its line, if it stands in one.
func (p *spot[T]) leave() {
	l := p.in
	if l == nil {
		return
	}
	if p.before == nil {
		l.first = p.after
	} else {
		p.before.after = p.after
	}
	if p.after == nil {
		l.last = p.before
	} else {
		p.after.before = p.before
	}
	l.length--
	*p = spot[T]{}
}
