package scan

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/admitkit/admitkit/internal/offline"
)

// object is a stored object.
type object struct {
	namespace, name, uid string
	// stored is its JSON, and created the one with which it could be created.
	stored, created []byte
}

// ofServer are the fields of metadata that an API server sets when it creates an object.
var ofServer = []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"}

// objectOf reads an item of a list. Those of built-in kinds do not say their kind.
func objectOf(pass Pass, item json.RawMessage) (o object, err error) {
	var fields, metadata map[string]json.RawMessage
	if err := json.Unmarshal(item, &fields); err != nil {
		return o, fmt.Errorf("reading an object: %w", err)
	}
	if err := json.Unmarshal(fields["metadata"], &metadata); err != nil {
		return o, fmt.Errorf("reading the metadata of an object: %w", err)
	}
	for field, into := range map[string]*string{"namespace": &o.namespace, "name": &o.name, "uid": &o.uid} {
		if text := metadata[field]; text != nil {
			if err := json.Unmarshal(text, into); err != nil {
				return o, fmt.Errorf("reading metadata.%s: %w", field, err)
			}
		}
	}
	set := func(in map[string]json.RawMessage, field string, value any) {
		if err == nil {
			in[field], err = json.Marshal(value)
		}
	}
	set(fields, "apiVersion", pass.Kind.GroupVersion().String())
	set(fields, "kind", pass.Kind.Kind)
	if err == nil {
		o.stored, err = json.Marshal(fields)
	}
	for _, field := range ofServer {
		delete(metadata, field)
	}
	if pass.HasStatus {
		delete(fields, "status")
	}
	set(fields, "metadata", metadata)
	if err == nil {
		o.created, err = json.Marshal(fields)
	}
	return o, err
}

// scan sends an object through the webhooks, and notes what came of it.
func (s *scanner) scan(ctx context.Context, engine *offline.Engine, pass Pass, o object) error {
	came, err := s.admit(ctx, engine, pass, o, UserOf(s.options.User))
	if err != nil {
		return err
	}
	var byUser map[string]bool
	if s.options.User == nil && s.result.sampled(pass, came) {
		other, err := s.admit(ctx, engine, pass, o, nobody)
		if err != nil {
			return err
		}
		byUser = s.result.compare(came, other)
	}
	s.result.add(pass, o, came, byUser)
	return nil
}

// admit returns what the extensions do to an object: by their names.
func (s *scanner) admit(ctx context.Context, engine *offline.Engine, pass Pass, o object, user authenticationv1.UserInfo) (map[string]*came, error) {
	all := map[string]*came{}
	labels := s.labelsOf(ctx, o.namespace)
	for _, req := range o.requests(pass) {
		req.NamespaceLabels, req.User, req.DryRun = labels, user, true
		out, err := engine.Admit(ctx, req)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, unknown := range out.Unknown {
			if unknown.Fact == offline.TheConditions {
				s.result.leave(pass, unknown)
			} else {
				s.result.incomplete(fmt.Errorf("%s: %w", pass.Resource.GroupResource(), unknown))
			}
		}
		if err != nil {
			s.result.incomplete(fmt.Errorf("%s %s/%s: %w", pass.Resource.GroupResource(), o.namespace, o.name, err))
		}
		if refused := out.Status != nil && !slices.ContainsFunc(out.Steps, func(s offline.Step) bool { return s.Result == "denied" || s.Err != nil }); refused {
			// It is a match condition that failed, before anybody was called.
			s.result.incomplete(fmt.Errorf("%s %s/%s: refused before an extension was called: %s", pass.Resource.GroupResource(), o.namespace, o.name, out.Status.Message))
		}
		for i := range out.Steps {
			if err := noteStep(all, req.Operation, &out.Steps[i]); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}
