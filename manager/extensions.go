package manager

import (
	"errors"
	"fmt"
	"slices"

	"github.com/admitkit/admitkit/internal/host"
)

// AddExtension adds an extension: an [extension.Extension], [extension.Watcher],
// [extension.Reconciler], [extension.Composite], [*extension.Handler] or
// [*extension.Converter], or a value
// that is several of these. One type cannot be both an Extension and a Watcher,
// because both have a method Handle: make it a Composite of two parts. Handlers
// with the same scope run in the order in which they were added.
//
// It fails for anything else, and after the start. The error says what would be
// right. It is returned by Start, Watch, RegisterExtensions and the rest too, so
// that no manager runs without an extension that its author believes is there.
func (m *Manager) AddExtension(e any) error {
	if err := m.addExtension(e); err != nil {
		err = fmt.Errorf("adding an extension: %w", err)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.problem = errors.Join(m.problem, err)
		return err
	}
	return nil
}

func (m *Manager) addExtension(e any) error {
	// Without the lock: a Composite asks the manager for what it needs.
	parts, err := host.PartsOf(e, m)
	if err != nil {
		return err
	}
	if len(parts.Handlers)+len(parts.Converters) > 0 {
		if err := m.options.callable(); err != nil {
			return fmt.Errorf("%T: %w", e, err)
		}
	}
	if _, err := parts.Reads(m.options.Scheme, host.Serves|host.Reconciles); err != nil {
		return err
	}
	for _, w := range parts.Watchers {
		if _, _, err := host.WatchedBy(w, m.options.Scheme); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started {
		return fmt.Errorf("%T: the manager has started", e)
	}
	if err := host.CheckConverters(slices.Concat(m.parts.Converters, parts.Converters)); err != nil {
		return err
	}
	m.parts.Append(parts)
	return nil
}

// errNothing is the error of a manager without extensions. It would be ready, and
// nobody would be asked.
var errNothing = errors.New("there is no extension: add one with AddExtension before the start")

// added returns what keeps the manager from running what its author added.
func (m *Manager) added() error {
	if err := m.problems(); err != nil {
		return err
	}
	if m.parts.Empty() {
		return errNothing
	}
	return nil
}

// problems returns the errors of AddExtension.
func (m *Manager) problems() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.problem
}
