package act

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// The most bytes of each part of a record. Whoever makes a request chooses most of
// them: a container's name can have 900 KiB. An object in etcd has at most 1.5 MiB, and
// one byte may become six in JSON. Of a longer part, its beginning and its end are kept.
const (
	commandLimit = 32 << 10
	// leastCommand is what each of many containers may have at least.
	leastCommand = 1 << 10
	textLimit    = 512
	pathLimit    = 2 << 10
	reasonLimit  = 8 << 10
	listLimit    = 8 << 10
	// maxContainers is how many containers a record lists.
	maxContainers = 32
)

// Bound shortens every text and list of a record that is longer than a record holds.
// What is left out has its size and its SHA-256 in its place.
func Bound(r *v1alpha1.AuditRecord) {
	b := &bounder{}
	for _, text := range []*string{
		&r.User.Username, &r.User.UID, &r.Namespace, &r.Pod, (*string)(&r.PodUID), &r.Service, &r.Node, &r.Container, &r.Image, &r.Session,
	} {
		b.text(text, textLimit)
	}
	b.text(&r.Path, pathLimit)
	b.text(&r.Reason, reasonLimit)
	if of := r.Object; of != nil {
		for _, text := range []*string{&of.Kind, &of.Name, (*string)(&of.UID)} {
			b.text(text, textLimit)
		}
	}
	if by := r.AccessRequest; by != nil {
		for _, text := range []*string{&by.Kind, &by.Name, (*string)(&by.UID)} {
			b.text(text, textLimit)
		}
	}
	r.User.Groups = b.list(r.User.Groups)
	r.User.Extra = b.extra(r.User.Extra)
	r.Ports = b.list(r.Ports)
	r.Containers = b.containers(r.Containers)
	if b.cut {
		flag(r, v1alpha1.FlagTruncated)
	}
}

// bounder remembers whether it has cut something.
type bounder struct{ cut bool }

// text cuts the middle out of a long text.
func (b *bounder) text(text *string, most int) {
	if len(*text) <= most {
		return
	}
	b.cut = true
	head, tail := (*text)[:most-most/4], (*text)[len(*text)-most/4:]
	*text = strings.ToValidUTF8(head, "") + missing(len(*text)-len(head)-len(tail), "bytes", *text) + strings.ToValidUTF8(tail, "")
}

// missing stands for what is left out of the whole.
func missing(n int, of, whole string) string {
	sum := sha256.Sum256([]byte(whole))
	return fmt.Sprintf("[... %d %s, SHA-256 of all %s ...]", n, of, hex.EncodeToString(sum[:]))
}

// list shortens a list of texts at its end.
func (b *bounder) list(list []string) []string {
	size := 0
	for i := range list {
		if size += len(list[i]) + 1; size > listLimit {
			b.cut = true
			return append(slices.Clip(list[:i]), missing(len(list)-i, "more", strings.Join(list, "\x00")+"\x00"))
		}
	}
	return list
}

// extra shortens what the authenticator adds about a user.
func (b *bounder) extra(extra map[string][]string) map[string][]string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		all = append(append(all, key), extra[key]...)
	}
	short := b.list(all)
	if len(short) == len(all) && (len(all) == 0 || short[len(short)-1] == all[len(all)-1]) {
		return extra
	}
	// As much as fits, key by key, and the mark under a key that no authenticator has.
	bounded, left := map[string][]string{"...": {short[len(short)-1]}}, len(short)-1
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		if left -= 1 + len(extra[key]); left < 0 {
			break
		}
		bounded[key] = extra[key]
	}
	return bounded
}

func (b *bounder) containers(all []v1alpha1.AuditContainer) []v1alpha1.AuditContainer {
	if len(all) > maxContainers {
		b.cut = true
		whole, _ := json.Marshal(all) // no container is without a form in JSON
		rest := v1alpha1.AuditContainer{Name: missing(len(all)-maxContainers, "more", string(whole))}
		all = append(all[:maxContainers:maxContainers], rest)
	}
	for i := range all {
		for _, text := range []*string{&all[i].Name, &all[i].Image, &all[i].Target} {
			b.text(text, textLimit)
		}
	}
	return all
}

// Sum returns the size and the SHA-256 of the arguments, each followed by a NUL.
// A shell has them by printf '%s\0' ARGUMENT... and wc -c or sha256sum.
func Sum(command []string) (size int64, sum string) {
	hash := sha256.New()
	for _, argument := range command {
		size += int64(len(argument)) + 1
		_, _ = hash.Write(append([]byte(argument), 0)) // never fails
	}
	return size, hex.EncodeToString(hash.Sum(nil))
}

// limit cuts the middle out of a command of more than most bytes, and reports whether
// it is whole. Each argument counts as one byte more.
func limit(command []string, most int) (cut []string, whole bool) {
	head := most - most/4
	tail := head - most // where the end begins
	for _, argument := range command {
		tail += len(argument) + 1
	}
	if tail <= head {
		return command, true
	}
	var after []string
	var begin, end string // of the arguments in which the cut begins and ends
	at := 0
	for _, argument := range command {
		next := at + len(argument) + 1
		switch {
		case next <= head:
			cut = append(cut, argument)
		case at >= tail:
			after = append(after, argument)
		default:
			if at < head {
				begin = argument[:min(len(argument), head-at)]
			}
			if next > tail {
				end = argument[min(len(argument), tail-at):]
			}
		}
		at = next
	}
	missing := fmt.Sprintf("[... %d bytes ...]", tail-head)
	return append(append(cut, strings.ToValidUTF8(begin, "")+missing+strings.ToValidUTF8(end, "")), after...), false
}

// Brief returns a copy of a record for an object that is written again and again: of
// commands it has little more than their sums.
func Brief(r *v1alpha1.AuditRecord) *v1alpha1.AuditRecord {
	brief := r.DeepCopy()
	shorten := func(command *[]string, size *int64, sum *string, most int) {
		short, whole := limit(*command, most)
		if whole {
			return
		}
		if *sum == "" {
			*size, *sum = Sum(*command)
		}
		*command = short
		flag(brief, v1alpha1.FlagTruncated)
	}
	shorten(&brief.Command, &brief.CommandBytes, &brief.CommandSHA256, leastCommand)
	for i := range brief.Containers {
		c := &brief.Containers[i]
		shorten(&c.Command, &c.CommandBytes, &c.CommandSHA256, leastCommand/len(brief.Containers))
	}
	return brief
}
