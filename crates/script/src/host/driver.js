// The part of a map-reduce job that runs inside V8: emitted values wait here by key, in lists
// that are reduced when they grow. Called once per job with `native`; gives back what Rust calls.
(function (native) {
  "use strict";

  const { origin, keyOf, take, takeWritten, endRun, isFull, tagOf, buffer } = native;
  const keysOf = Object.keys;
  const prototypeOf = Object.getPrototypeOf;
  const isArray = Array.isArray;
  const ObjectPrototype = Object.prototype;
  const DBRefPrototype = DBRef.prototype;
  const NESTING_MAX = 150;
  // A list of this length is reduced.
  const VALUES_MAX = 1024;
  // Every so many emits the heap is looked at.
  const EMITS_BETWEEN_LOOKS = 0x800;
  const VALUE_BYTES_MAX = 16793600;
  const DOCUMENT_EMIT_BYTES_MAX = 104857600;

  let map, reduce, finalize, collated;
  // By key: strings and numbers as themselves, the rest by an encoding in which equal keys are
  // equal strings.
  let strings = new Map();
  let numbers = new Map();
  let others = new Map();
  let emits = 0;
  let reduces = 0;
  // Bytes emitted for the current document.
  let documentBytes = 0;
  let copiedBytes = 0;
  let reducing = false;

  function fail(code, message) {
    const error = new Error(message);
    error.code = code;
    throw error;
  }

  // A key with its values. Most have few, and a list of few values would take more room for those
  // to come than for them.
  class Entry {
    constructor(key, value) {
      this.key = key;
      this.count = 1;
      // Begins as what is no number, so that numbers of all kinds find a place.
      this.first = undefined;
      this.second = undefined;
      this.third = undefined;
      this.fourth = undefined;
      // All of them, where there are more.
      this.list = undefined;
      this.first = value;
    }
  }

  function add(entry, value) {
    const list = entry.list;
    if (list !== undefined) {
      list.push(value);
      if (list.length >= VALUES_MAX) {
        entry.list = [reduceValues(entry.key, list)];
      }
      return;
    }
    switch (entry.count++) {
      case 1:
        entry.second = value;
        break;
      case 2:
        entry.third = value;
        break;
      case 3:
        entry.fourth = value;
        break;
      default:
        entry.list = [entry.first, entry.second, entry.third, entry.fourth, value];
        entry.first = entry.second = entry.third = entry.fourth = undefined;
    }
  }

  // What the values of an entry come to.
  function reducedEntry(entry) {
    const { key, list, first, second } = entry;
    if (list !== undefined) {
      return list.length > 1 ? reduceValues(key, list) : list[0];
    }
    switch (entry.count) {
      case 1:
        return first;
      case 2:
        return reduceValues(key, [first, second]);
      case 3:
        return reduceValues(key, [first, second, entry.third]);
      default:
        return reduceValues(key, [first, second, entry.third, entry.fourth]);
    }
  }

  // An emitted object may change afterwards; what was emitted may not.
  function copy(value, depth) {
    if (depth > NESTING_MAX) {
      fail(17279, "Exceeded depth limit of 150 when converting js object to BSON. Do you have a cycle?");
    }
    let result;
    if (isArray(value)) {
      result = [];
      for (let i = 0; i < value.length; i++) {
        result.push(copyAny(value[i], depth));
      }
      copiedBytes += 5;
    } else {
      const prototype = prototypeOf(value);
      if (prototype === ObjectPrototype || prototype === null) {
        result = {};
      } else if (prototype === DBRefPrototype) {
        result = Object.create(DBRefPrototype);
      } else if (tagOf(value) !== 0 || value instanceof RegExp || ArrayBuffer.isView(value)) {
        copiedBytes += 16;
        return value;
      } else if (value instanceof Date) {
        copiedBytes += 8;
        return Number.isNaN(value.getTime()) ? value : new Date(value.getTime());
      } else if (value instanceof Number || value instanceof String || value instanceof Boolean) {
        return value.valueOf();
      } else {
        result = {};
      }
      for (const name of keysOf(value)) {
        result[name] = copyAny(value[name], depth);
        copiedBytes += name.length;
      }
      copiedBytes += 5;
    }
    const memory = value[origin];
    if (memory !== undefined) {
      result[origin] = memory;
    }
    return result;
  }

  function copyAny(value, depth) {
    if (typeof value === "object" && value !== null) {
      copiedBytes += 2;
      return copy(value, depth + 1);
    }
    copiedBytes += typeof value === "string" ? value.length + 7 : 10;
    return value;
  }

  function charge(bytes) {
    if (bytes > VALUE_BYTES_MAX) {
      fail(
        17260,
        "Converting from JavaScript to BSON failed: Object size " + bytes +
          " exceeds limit of " + VALUE_BYTES_MAX + " bytes.",
      );
    }
    documentBytes += bytes;
    if (documentBytes > DOCUMENT_EMIT_BYTES_MAX) {
      fail(31292, "Size of emitted values exceeds the set size limit of 104857600 bytes");
    }
  }

  function ownCopy(value) {
    copiedBytes = 0;
    const copied = copy(value, 0);
    charge(copiedBytes);
    return copied;
  }

  function emit(key, value) {
    if (arguments.length !== 2) {
      fail(31220, "emit takes 2 args");
    }
    if (reducing) {
      fail(31220, "emit can be called in map only");
    }
    if (typeof value === "object" && value !== null) {
      value = ownCopy(value);
    } else if (typeof value === "string" && value.length > 1024) {
      charge(value.length);
    }
    let entry;
    // Under a collation strings that differ may be one key.
    if (typeof key === "string" && !collated) {
      entry = strings.get(key);
      if (entry === undefined) {
        strings.set(key, new Entry(key, value));
      }
    } else if (typeof key === "number") {
      entry = numbers.get(key);
      if (entry === undefined) {
        numbers.set(key, new Entry(key, value));
      }
    } else {
      entry = otherEntry(key, value);
    }
    if (entry !== undefined) {
      add(entry, value);
    }
    emits++;
    if ((emits & (EMITS_BETWEEN_LOOKS - 1)) === 0 && isFull()) {
      flush();
    }
  }

  function otherEntry(key, value) {
    if (key === undefined) {
      key = null;
    } else if (typeof key === "object" && key !== null) {
      key = ownCopy(key);
    }
    const identity = keyOf(key);
    const entries = typeof identity === "number" ? numbers : others;
    const entry = entries.get(identity);
    if (entry === undefined) {
      entries.set(identity, new Entry(key, value));
    }
    return entry;
  }

  function reduceValues(key, values) {
    reduces++;
    reducing = true;
    const reduced = reduce(key, values);
    reducing = false;
    return typeof reduced === "object" && reduced !== null ? resultCopy(reduced) : reduced;
  }

  // A result may be an object that the function keeps and changes.
  function resultCopy(value) {
    return copy(value, 0);
  }

  // What is written here in BSON waits to be taken together: a call of Rust costs more than writing
  // what is simple.
  const bytes = new Uint8Array(buffer);
  const view = new DataView(buffer);
  const BYTES = bytes.length;
  // Types and names as they lie: "\x02_id", "\0\x01va" and "lue\0".
  const STRING_ID = 0x64695f02;
  const END_DOUBLE_VA = 0x61760100;
  const LUE_END = 0x0065756c;
  // The end of what is written.
  let at = 0;

  // False: there is no room, or it is not plain ASCII. No name holds a zero.
  function putText(text) {
    const length = text.length;
    if (length >= BYTES - at) {
      return false;
    }
    for (let i = 0; i < length; i++) {
      const unit = text.charCodeAt(i);
      if (unit === 0 || unit > 0x7f) {
        return false;
      }
      bytes[at + i] = unit;
    }
    bytes[at + length] = 0;
    at += length + 1;
    return true;
  }

  // An element with a value of the simple types, or an object of such: one that `copy` has made, as
  // what a script has made may run a script when it is read. False: it is none, or there is no room.
  function putElement(name, value, isCopy) {
    const kind = at++;
    if (!putText(name)) {
      return false;
    }
    switch (typeof value) {
      case "number":
        bytes[kind] = 0x01;
        if (at + 8 > BYTES) {
          return false;
        }
        view.setFloat64(at, value, true);
        at += 8;
        break;
      case "string": {
        bytes[kind] = 0x02;
        const start = at;
        at += 4;
        if (!putText(value)) {
          return false;
        }
        view.setInt32(start, at - start - 4, true);
        break;
      }
      case "boolean":
        bytes[kind] = 0x08;
        bytes[at++] = value ? 1 : 0;
        break;
      default:
        if (value === null) {
          bytes[kind] = 0x0a;
          break;
        }
        bytes[kind] = 0x03;
        if (!isCopy || !putPlain(value)) {
          return false;
        }
    }
    return at < BYTES;
  }

  function putPlain(value) {
    if (
      typeof value !== "object" || prototypeOf(value) !== ObjectPrototype ||
      value[origin] !== undefined
    ) {
      return false;
    }
    const start = at;
    at += 4;
    for (const name of keysOf(value)) {
      if (!putElement(name, value[name], true)) {
        return false;
      }
    }
    if (at >= BYTES) {
      return false;
    }
    end(start);
    return true;
  }

  // A place for a document.
  function begin() {
    if (at > BYTES >> 1) {
      hand();
    }
    const start = at;
    at += 4;
    return start;
  }

  function end(start) {
    bytes[at++] = 0;
    view.setInt32(start, at - start, true);
  }

  // Hands over what is written.
  function hand() {
    if (at > 0) {
      takeWritten(at);
      at = 0;
    }
  }

  // Sends everything on as one sorted run and begins anew.
  function flush() {
    for (const entries of [strings, numbers, others]) {
      for (const entry of entries.values()) {
        const value = reducedEntry(entry);
        putPartial(entry.key, value === undefined ? null : value);
      }
    }
    hand();
    strings = new Map();
    numbers = new Map();
    others = new Map();
    endRun();
  }

  // `{_id: key, value}`, the most frequent kind, in one piece. False: it has to go another way.
  function putTextAndNumber(key, value) {
    const length = key.length;
    const start = begin();
    at = start;
    if (length > BYTES >> 2) {
      return false;
    }
    let to = start + 13;
    let units = 0;
    for (let i = 0; i < length; i++) {
      const unit = key.charCodeAt(i);
      units |= unit;
      bytes[to + i] = unit;
    }
    if (units > 0x7f) {
      return false;
    }
    to += length;
    view.setInt32(start, length + 30, true);
    view.setInt32(start + 4, STRING_ID, true);
    bytes[start + 8] = 0;
    view.setInt32(start + 9, length + 1, true);
    view.setInt32(to, END_DOUBLE_VA, true);
    view.setInt32(to + 4, LUE_END, true);
    view.setFloat64(to + 8, value, true);
    bytes[to + 16] = 0;
    at = to + 17;
    return true;
  }

  function putPartial(key, value) {
    if (typeof key === "string" && typeof value === "number" && putTextAndNumber(key, value)) {
      return;
    }
    const start = begin();
    if (putElement("_id", key, true) && putElement("value", value, true)) {
      end(start);
    } else {
      at = start;
      take(key, value);
    }
  }

  // Reduces what belongs to each key, and finalizes it where this is the last word. `values` are those
  // of all keys, one key's after the other's, `counts` how many each has.
  function finish(keys, counts, values, last) {
    for (let i = 0, from = 0; i < keys.length; i++) {
      const key = keys[i];
      const to = from + counts[i];
      let value = values[from];
      if (to - from > 1) {
        const own = [];
        for (let j = from; j < to; j++) {
          own.push(values[j]);
        }
        value = reduceValues(key, own);
      }
      from = to;
      if (last && finalize !== undefined) {
        reducing = true;
        value = finalize(key, value);
        reducing = false;
      }
      putValue(value === undefined ? null : value);
    }
    hand();
  }

  function putValue(value) {
    const start = begin();
    if (putElement("value", value, finalize === undefined)) {
      end(start);
    } else {
      at = start;
      hand();
      take(undefined, value);
    }
  }

  Object.defineProperty(globalThis, "emit", { value: emit, configurable: true, writable: true });

  return {
    setFunctions(given) {
      map = given.map;
      reduce = given.reduce;
      finalize = given.finalize;
      collated = given.collated;
    },
    // Where the map function may read anything: one whole object per document.
    mapDocuments(documents) {
      for (let i = 0; i < documents.length; i++) {
        documentBytes = 0;
        map.call(documents[i]);
      }
    },
    beginDocument() {
      documentBytes = 0;
    },
    flush,
    finish,
    emits: () => emits,
    reduces: () => reduces,
  };
});
