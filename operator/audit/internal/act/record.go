package act

import (
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// flag sets flags on a record, each once.
func flag(r *v1alpha1.AuditRecord, flags ...v1alpha1.AuditFlag) {
	for _, flag := range flags {
		if !slices.Contains(r.Flags, flag) {
			r.Flags = append(r.Flags, flag)
		}
	}
}

// Describe names an act in the message that refuses it.
func Describe(r *v1alpha1.AuditRecord) string {
	way := string(r.Way)
	switch {
	case r.Way == v1alpha1.WayPod && r.Verb == "update":
		way = "image update"
	case r.Way == v1alpha1.WayPod:
		way = "creation"
	}
	switch {
	case r.Way == v1alpha1.WayDecision && r.Object != nil:
		return fmt.Sprintf("what is %s of %s %s/%s", r.Verb, r.Object.Kind, r.Namespace, r.Object.Name)
	case r.Pod != "":
		return fmt.Sprintf("%s of Pod %s/%s", way, r.Namespace, r.Pod)
	case r.Service != "":
		return fmt.Sprintf("%s of Service %s/%s", way, r.Namespace, r.Service)
	case r.Node != "":
		return fmt.Sprintf("%s of node %s", way, r.Node)
	}
	return fmt.Sprintf("%s of a Pod in namespace %s", way, r.Namespace)
}

// Lane is the key by which records are kept in order: the Pod, or what the
// request names instead of a Pod.
func Lane(r *v1alpha1.AuditRecord) string {
	switch {
	case r.Object != nil:
		return r.Object.Kind + "/" + r.Namespace + "/" + r.Object.Name
	case r.Pod != "":
		return "pod/" + r.Namespace + "/" + r.Pod
	}
	return r.Service + "/" + r.Namespace + "/" + r.Node
}

// Fields returns a record as the fields of a log line, without empty ones.
func Fields(r *v1alpha1.AuditRecord) []zap.Field {
	fields := []zap.Field{
		zap.String("id", r.ID), zap.String("way", string(r.Way)), zap.String("verb", r.Verb),
		zap.String("user", r.User.Username), zap.Strings("groups", r.User.Groups),
	}
	add := func(present bool, field zap.Field) {
		if present {
			fields = append(fields, field)
		}
	}
	text := func(key, value string) { add(value != "", zap.String(key, value)) }
	text("cluster", r.Cluster)
	text("amends", r.Amends)
	text("userUID", r.User.UID)
	add(len(r.User.Extra) > 0, zap.Any("extra", r.User.Extra))
	text("namespace", r.Namespace)
	text("pod", r.Pod)
	text("podUID", string(r.PodUID))
	text("service", r.Service)
	text("node", r.Node)
	text("container", r.Container)
	text("image", r.Image)
	fields = append(fields, zap.Strings("command", r.Command), zap.Bool("tty", r.TTY), zap.Bool("stdin", r.Stdin))
	add(r.CommandSHA256 != "", zap.Int64("commandBytes", r.CommandBytes))
	text("commandSHA256", r.CommandSHA256)
	text("session", r.Session)
	add(len(r.Ports) > 0, zap.Strings("ports", r.Ports))
	text("path", r.Path)
	add(len(r.Containers) > 0, zap.Any("containers", r.Containers))
	add(r.DryRun, zap.Bool("dryRun", true))
	text("decision", string(r.Decision))
	text("rule", r.Rule)
	text("reason", r.Reason)
	if r.Object != nil {
		fields = append(fields, zap.String("object", r.Object.Kind+"/"+r.Object.Name))
	}
	if r.AccessRequest != nil {
		fields = append(fields, zap.String("accessRequest", r.AccessRequest.Kind+"/"+r.AccessRequest.Name))
	}
	add(len(r.Flags) > 0, zap.Any("flags", r.Flags))
	return fields
}
