package registration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

func get(ctx context.Context, client rest.Interface, res resource, name string) (*configuration, error) {
	data, err := raw(client.Get().Resource(res.plural).Name(name).SetHeader("Accept", "application/json").Do(ctx))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", res.kind, name, err)
	}
	return decode(res, name, data)
}

// raw returns the body of an answer, or its Status as an error.
func raw(result rest.Result) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

func decode(res resource, name string, data []byte) (*configuration, error) {
	c := &configuration{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", res.kind, name, err)
	}
	return c, nil
}

// apply writes by server-side apply and returns the result. If the object has a
// resource version, it fails when others wrote in between.
func apply(ctx context.Context, client rest.Interface, res resource, c *configuration) (*configuration, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	data, err := raw(client.Patch(types.ApplyPatchType).Resource(res.plural).Name(c.Name).
		Param("fieldManager", FieldManager).Param("force", "true").
		SetHeader("Accept", "application/json").Body(body).Do(ctx))
	if err != nil {
		return nil, fmt.Errorf("applying %s %s: %w", res.kind, c.Name, err)
	}
	return decode(res, c.Name, data)
}

// replace writes a whole object.
func replace(ctx context.Context, client rest.Interface, res resource, c *configuration) error {
	c.Kind, c.APIVersion = res.kind, "admissionregistration.k8s.io/v1"
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := client.Put().Resource(res.plural).Name(c.Name).Param("fieldManager", FieldManager).
		SetHeader("Accept", "application/json").SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error(); err != nil {
		return fmt.Errorf("replacing %s %s: %w", res.kind, c.Name, err)
	}
	return nil
}

// Remove deletes both objects, and returns the kinds of those that existed.
func Remove(ctx context.Context, client rest.Interface, name string) (removed []string, err error) {
	var errs []error
	for _, res := range resources {
		err := client.Delete().Resource(res.plural).Name(name).SetHeader("Accept", "application/json").Do(ctx).Error()
		switch {
		case err == nil:
			removed = append(removed, res.kind)
		case !apierrors.IsNotFound(err):
			errs = append(errs, fmt.Errorf("deleting %s %s: %w", res.kind, name, err))
		}
	}
	return removed, errors.Join(errs...)
}

func remove(ctx context.Context, client rest.Interface, res resource, name string) error {
	err := client.Delete().Resource(res.plural).Name(name).SetHeader("Accept", "application/json").Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting %s %s: %w", res.kind, name, err)
	}
	return nil
}

// Bundles returns the caBundles of the registered entries. It returns an error if
// there are none.
func Bundles(ctx context.Context, client rest.Interface, name string) ([][]byte, error) {
	var bundles [][]byte
	for _, res := range resources {
		live, err := get(ctx, client, res, name)
		if err != nil {
			return nil, err
		}
		if live == nil {
			continue
		}
		for _, e := range live.Webhooks {
			if known := slices.ContainsFunc(bundles, func(b []byte) bool { return bytes.Equal(b, e.ClientConfig.CABundle) }); !known {
				bundles = append(bundles, e.ClientConfig.CABundle)
			}
		}
	}
	if len(bundles) == 0 {
		return nil, fmt.Errorf("no webhook is registered as %s", name)
	}
	return bundles, nil
}
