// Reads a validator's replica/history with the library of Go's checksum database, which shares no
// code with souk: opens the certified head as a signed note, checks every leaf and the growth of
// the log by tlog's own proofs from the validator's tiles, and then a saved proof of a receipt.
//
//	go run read_history.go FOLDER MARKET_JSON [RECEIPT.tlog-proof]
//
// It needs golang.org/x/mod (Debian: golang-golang-x-mod-dev, with GO111MODULE=off and
// GOPATH=/usr/share/gocode).
package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	tileHeight  = 8
	growthSteps = 64
	cosignature = 0x04
)

// A validator whose cosignatures (C2SP cosignature/v1) count.
type validator struct {
	name string
	key  ed25519.PublicKey
}

func (it validator) Name() string { return it.name }

func (it validator) KeyHash() uint32 {
	id := sha256.Sum256(append([]byte(it.name+"\n\x04"), it.key...))
	return binary.BigEndian.Uint32(id[:4])
}

func (it validator) Verify(message, signature []byte) bool {
	if len(signature) != 8+ed25519.SignatureSize {
		return false
	}
	time := binary.BigEndian.Uint64(signature)
	signed := fmt.Sprintf("cosignature/v1\ntime %d\n%s", time, message)
	return ed25519.Verify(it.key, []byte(signed), signature[8:])
}

// The tiles of a folder, by the names of C2SP's tlog-tiles.
type tiles struct{ folder string }

func (it tiles) Height() int { return tileHeight }

func (it tiles) ReadTiles(wanted []tlog.Tile) ([][]byte, error) {
	var all [][]byte
	for _, tile := range wanted {
		path := filepath.Join(it.folder, strings.Replace(tile.Path(), "tile/8/", "tile/", 1))
		data, err := readTile(path, tile.W)
		if err != nil {
			return nil, err
		}
		all = append(all, data[:tile.W*tlog.HashSize])
	}
	return all, nil
}

// Reads a tile, or a wider one that took its place since the head was read.
func readTile(path string, width int) ([]byte, error) {
	candidates := []string{path}
	if width < 1<<tileHeight {
		partial := filepath.Dir(path)
		wider, _ := filepath.Glob(filepath.Join(partial, "*"))
		candidates = append(append(candidates, wider...), strings.TrimSuffix(partial, ".p"))
	}
	for _, candidate := range candidates {
		data, err := os.ReadFile(candidate)
		if err == nil && len(data) >= width*tlog.HashSize {
			return data, nil
		}
	}
	return nil, fmt.Errorf("no file has the %d hashes of %s", width, path)
}

func (it tiles) SaveTiles([]tlog.Tile, [][]byte) {}

// Opens a checkpoint, which more than two thirds of the founders must have signed.
func openHead(text []byte, founders []note.Verifier) (int64, tlog.Hash) {
	opened, err := note.Open(text, note.VerifierList(founders...))
	check(err)
	if needed := 2*len(founders)/3 + 1; len(opened.Sigs) < needed {
		log.Fatalf("%d of %d founders signed; %d are needed", len(opened.Sigs), len(founders), needed)
	}
	lines := strings.Split(opened.Text, "\n")
	size, err := strconv.ParseInt(lines[1], 10, 64)
	check(err)
	root, err := tlog.ParseHash(lines[2])
	check(err)
	return size, root
}

func readFounders(path string, origin string) []note.Verifier {
	content, err := os.ReadFile(path)
	check(err)
	var market struct {
		Genesis struct {
			Validators []struct {
				RaftID  int `json:"raft_id"`
				Account string
			}
		}
	}
	check(json.Unmarshal(content, &market))
	var founders []note.Verifier
	for _, founder := range market.Genesis.Validators {
		key, err := hex.DecodeString(founder.Account)
		check(err)
		founders = append(founders, validator{fmt.Sprintf("%s/%d", origin, founder.RaftID), key})
	}
	return founders
}

func hashOf(leaf int64, hashes tlog.HashReader) tlog.Hash {
	read, err := hashes.ReadHashes([]int64{tlog.StoredHashIndex(0, leaf)})
	check(err)
	return read[0]
}

func main() {
	log.SetFlags(0)
	folder := os.Args[1]
	text, err := os.ReadFile(filepath.Join(folder, "checkpoint"))
	check(err)
	origin := strings.SplitN(string(text), "\n", 2)[0]
	founders := readFounders(os.Args[2], origin)
	size, root := openHead(text, founders)
	hashes := tlog.TileHashReader(tlog.Tree{N: size, Hash: root}, tiles{folder})
	for leaf := int64(0); leaf < size; leaf++ {
		proof, err := tlog.ProveRecord(size, leaf, hashes)
		check(err)
		check(tlog.CheckRecord(proof, size, root, leaf, hashOf(leaf, hashes)))
	}
	fmt.Printf("%d leaves are proven by the tiles\n", size)
	step := size/growthSteps + 1
	for old := int64(1); old <= size; old += step {
		before, err := tlog.TreeHash(old, hashes)
		check(err)
		proof, err := tlog.ProveTree(size, old, hashes)
		check(err)
		check(tlog.CheckTree(proof, size, root, old, before))
	}
	fmt.Printf("it continues the log of 1, %d, ... leaves\n", 1+step)
	if len(os.Args) > 3 {
		checkReceipt(os.Args[3], founders, hashes)
	}
}

// Checks the path of a C2SP tlog-proof and its head. Its leaf has the hash that the tiles state,
// because only souk knows what a leaf hashes.
func checkReceipt(path string, founders []note.Verifier, hashes tlog.HashReader) {
	content, err := os.ReadFile(path)
	check(err)
	proof, head, found := strings.Cut(string(content), "\n\n")
	lines := strings.Split(proof, "\n")
	if !found || lines[0] != "c2sp.org/tlog-proof@v1" {
		log.Fatalf("%s is no tlog-proof", path)
	}
	size, root := openHead([]byte(head), founders)
	if strings.HasPrefix(lines[1], "extra ") {
		lines = lines[1:]
	}
	leaf, err := strconv.ParseInt(strings.TrimPrefix(lines[1], "index "), 10, 64)
	check(err)
	var nodes tlog.RecordProof
	for _, line := range lines[2:] {
		node, err := base64.StdEncoding.DecodeString(line)
		check(err)
		var hash tlog.Hash
		copy(hash[:], node)
		nodes = append(nodes, hash)
	}
	check(tlog.CheckRecord(nodes, size, root, leaf, hashOf(leaf, hashes)))
	fmt.Printf("the receipt's leaf %d is in the certified tree of %d\n", leaf, size)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
