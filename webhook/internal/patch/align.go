package patch

import (
	"reflect"
	"slices"
	"strconv"
)

// alignment says which item of a list became which.
type alignment struct {
	// source has, for each item of after, the same item of before, or -1.
	source []int
	// stays marks the items of before that keep their order, moves those that are
	// elsewhere in after. All others were removed.
	stays, moves []bool
}

// maxTable is the most pairs of items that are all compared: a list of 128 items
// that changed at both ends. Longer lists are aligned by identity alone.
const maxTable = 1 << 14

// align finds out which of n items became which of m items.
func (e *listEdit) align(p *plan, n, m int) error {
	e.source, e.stays, e.moves = slices.Repeat([]int{-1}, m), make([]bool, n), make([]bool, n)
	e.keyed = make([]bool, m)
	if n == 0 || m == 0 {
		return nil
	}
	if n == 1 && m == 1 && p.key == nil && p.elem.form != anyForm {
		return nil // one item changed
	}
	ids := map[identity]int{}
	intern := func(id identity) int {
		if _, known := ids[id]; !known {
			ids[id] = len(ids)
		}
		return ids[id]
	}
	before, after := make([]int, n), make([]int, m)
	for i := range n {
		id, err := e.identify(p, e.was(i))
		if err != nil {
			return err
		}
		before[i] = intern(id)
	}
	for j := range m {
		id, err := e.identify(p, e.is(j))
		if err != nil {
			return err
		}
		after[j], e.keyed[j] = intern(id), id.keyed
	}
	distinct := e.tellTwinsApart(p, before, after, len(ids))
	if n*m <= maxTable {
		e.matchBest(before, after)
	} else {
		e.matchLong(before, after, distinct)
	}
	e.matchMoved(before, after, distinct)
	return nil
}

// identity identifies an item: its key, or all of its content.
type identity struct {
	keyed bool
	text  string
}

// untypedKeys has the keys of lists in objects without a Go type. In all other
// lists the key is the name.
var untypedKeys = map[string]string{
	"conditions":      "type",
	"ownerReferences": "uid",
	"volumeMounts":    "mountPath",
	"volumeDevices":   "devicePath",
	"hostAliases":     "ip",
}

func (e *listEdit) identify(p *plan, item reflect.Value) (identity, error) {
	switch {
	case p.key != nil:
		for item.Kind() == reflect.Pointer && !item.IsNil() {
			item = item.Elem()
		}
		if item.Kind() != reflect.Struct {
			break
		}
		if key, has := p.key.of(item); has {
			return e.identifyBy(true, p.key.plan, key)
		}
	case p.elem.form == anyForm:
		name := "name"
		if special, known := untypedKeys[e.path[len(e.path)-1].name]; known {
			name = special
		}
		if object, isObject := reflect.TypeAssert[map[string]any](item); isObject {
			if key, isString := object[name].(string); isString {
				return identity{keyed: true, text: key}, nil
			}
		}
	}
	return e.identifyBy(false, p.elem, item)
}

func (e *listEdit) identifyBy(keyed bool, p *plan, v reflect.Value) (identity, error) {
	switch {
	case v.Kind() == reflect.String && p.form == leaf:
		return identity{keyed: keyed, text: v.String()}, nil
	case v.CanInt() && p.form == leaf:
		return identity{keyed: keyed, text: strconv.FormatInt(v.Int(), 10)}, nil
	}
	begin := e.buffer.Len()
	content, err := e.encode(p, v)
	text := string(content)
	e.buffer.Truncate(begin)
	return identity{keyed: keyed, text: text}, err
}

// secondKeys has the second key of the API's lists that have two (+listMapKey in its
// comments), by the first, which is all that patchMergeKey names.
var secondKeys = map[string]string{"containerPort": "protocol", "port": "protocol", "topologyKey": "whenUnsatisfiable"}

// tellTwinsApart pairs the items that have one key, such as the ports 53/TCP and
// 53/UDP, by what else they have in common, and gives each pair an identity of its
// own. It returns the number of identities.
func (e *listEdit) tellTwinsApart(p *plan, before, after []int, ids int) int {
	if !haveTwins(before, ids) && !haveTwins(after, ids) {
		return ids
	}
	type pair struct{ i, j, worth int }
	was, is := placesOf(before, ids), placesOf(after, ids)
	for id := range was {
		if n := len(was[id]) * len(is[id]); n < 2 || n > maxTable || !e.keyed[is[id][0]] {
			continue
		}
		var pairs []pair
		for _, i := range was[id] {
			for _, j := range is[id] {
				pairs = append(pairs, pair{i, j, p.likeness(e.was(i), e.is(j))})
			}
		}
		slices.SortStableFunc(pairs, func(a, b pair) int { return b.worth - a.worth })
		for _, pair := range pairs {
			if before[pair.i] == id && after[pair.j] == id {
				before[pair.i], after[pair.j] = ids, ids
				ids++
			}
		}
	}
	return ids
}

func haveTwins(list []int, ids int) bool {
	seen := make([]bool, ids)
	for _, id := range list {
		if seen[id] {
			return true
		}
		seen[id] = true
	}
	return false
}

// likeness returns how much two items of a list have in common: their second key
// above all, then the number of equal fields.
func (p *plan) likeness(a, b reflect.Value) (n int) {
	switch {
	case p.elem.form == anyForm:
		x, _ := reflect.TypeAssert[map[string]any](a)
		y, _ := reflect.TypeAssert[map[string]any](b)
		for key, value := range x {
			if other, found := y[key]; found && equalTrees(value, other) {
				n++
			}
		}
		return n
	case a.Kind() == reflect.Pointer:
		a, b = a.Elem(), b.Elem() // with a key, so not nil
	}
	item := planOf(a.Type())
	for _, f := range item.fields {
		if !f.same(addressOf(a), addressOf(b)) {
			continue
		}
		n++
		if f.Name == secondKeys[p.key.Name] {
			n += len(item.fields)
		}
	}
	return n
}

// The worth of a pair of items: they have the same identity, or they are equal too.
// Two ports can have the same number and differ in their protocol.
const (
	worthSame      = 2
	worthUnchanged = 3
)

func (e *listEdit) worth(i, j int) int32 {
	if e.elem.same(e.was(i), e.is(j)) {
		return worthUnchanged
	}
	return worthSame
}

// matchBest finds the common subsequence of the highest worth.
func (e *listEdit) matchBest(before, after []int) {
	n, m := len(before), len(after)
	// best[i*(m+1)+j] is the worth of the items from i and j on.
	best := make([]int32, (n+1)*(m+1))
	at := func(i, j int) *int32 { return &best[i*(m+1)+j] }
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			*at(i, j) = max(*at(i+1, j), *at(i, j+1))
			if before[i] == after[j] {
				*at(i, j) = max(*at(i, j), *at(i+1, j+1)+e.worth(i, j))
			}
		}
	}
	for i, j := 0, 0; i < n && j < m; {
		switch *at(i, j) {
		case *at(i+1, j):
			i++
		case *at(i, j+1):
			j++
		default:
			e.source[j], e.stays[i] = i, true
			i++
			j++
		}
	}
}

// matchLong pairs the items of each identity in their order; those in a longest
// increasing subsequence stay. It takes n log n steps, and is optimal if no two
// items have the same identity.
func (e *listEdit) matchLong(before, after []int, ids int) {
	places := placesOf(before, ids)
	source := make([]int, len(after))
	var tails []int // the item of after that ends the best subsequence of each length
	previous := make([]int, len(after))
	for j, id := range after {
		source[j], previous[j] = -1, -1
		if len(places[id]) == 0 {
			continue
		}
		source[j], places[id] = places[id][0], places[id][1:]
		length, _ := slices.BinarySearchFunc(tails, source[j], func(tail, i int) int { return source[tail] - i })
		if length > 0 {
			previous[j] = tails[length-1]
		}
		if length == len(tails) {
			tails = append(tails, j)
		} else {
			tails[length] = j
		}
	}
	if len(tails) == 0 {
		return
	}
	for j := tails[len(tails)-1]; j >= 0; j = previous[j] {
		e.source[j], e.stays[source[j]] = source[j], true
	}
}

// matchMoved pairs the items that are in both lists but do not stay.
func (e *listEdit) matchMoved(before, after []int, ids int) {
	places := placesOf(before, ids)
	for j, id := range after {
		if e.source[j] >= 0 {
			continue
		}
		for e.source[j] < 0 && len(places[id]) > 0 {
			if i := places[id][0]; !e.stays[i] {
				e.source[j], e.moves[i] = i, true
			}
			places[id] = places[id][1:]
		}
	}
}

// placesOf returns the indexes of each identity in a list.
func placesOf(list []int, ids int) [][]int {
	places := make([][]int, ids)
	for i, id := range list {
		places[id] = append(places[id], i)
	}
	return places
}
