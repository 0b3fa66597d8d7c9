// The part of a map-reduce job that runs inside V8: emitted values wait here by key, in lists
// that are reduced when they grow. Called once per job with `native`; gives back what Rust calls.
// The names of functions begin with `driver`: by that V8 knows what not to optimize twice (`FLAGS` in
// runtime.rs).
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

  function driverFail(code, message) {
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

  function driverAdd(entry, value) {
    const list = entry.list;
    if (list !== undefined) {
      list.push(value);
      if (list.length >= VALUES_MAX) {
        entry.list = [driverReduceValues(entry.key, list)];
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
  function driverReducedEntry(entry) {
    const { key, list, first, second } = entry;
    if (list !== undefined) {
      return list.length > 1 ? driverReduceValues(key, list) : list[0];
    }
    switch (entry.count) {
      case 1:
        return first;
      case 2:
        return driverReduceValues(key, [first, second]);
      case 3:
        return driverReduceValues(key, [first, second, entry.third]);
      default:
        return driverReduceValues(key, [first, second, entry.third, entry.fourth]);
    }
  }

  // An emitted object may change afterwards; what was emitted may not.
  function driverCopy(value, depth) {
    if (depth > NESTING_MAX) {
      driverFail(17279, "Exceeded depth limit of 150 when converting js object to BSON. Do you have a cycle?");
    }
    let result;
    if (isArray(value)) {
      result = [];
      for (let i = 0; i < value.length; i++) {
        result.push(driverCopyAny(value[i], depth));
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
        result[name] = driverCopyAny(value[name], depth);
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

  function driverCopyAny(value, depth) {
    if (typeof value === "object" && value !== null) {
      copiedBytes += 2;
      return driverCopy(value, depth + 1);
    }
    copiedBytes += typeof value === "string" ? value.length + 7 : 10;
    return value;
  }

  function driverCharge(bytes) {
    if (bytes > VALUE_BYTES_MAX) {
      driverFail(
        17260,
        "Converting from JavaScript to BSON failed: Object size " + bytes +
          " exceeds limit of " + VALUE_BYTES_MAX + " bytes.",
      );
    }
    documentBytes += bytes;
    if (documentBytes > DOCUMENT_EMIT_BYTES_MAX) {
      driverFail(31292, "Size of emitted values exceeds the set size limit of 104857600 bytes");
    }
  }

  function driverOwnCopy(value) {
    copiedBytes = 0;
    const copied = driverCopy(value, 0);
    driverCharge(copiedBytes);
    return copied;
  }

  function driverEmit(key, value) {
    if (arguments.length !== 2) {
      driverFail(31220, "emit takes 2 args");
    }
    if (reducing) {
      driverFail(31220, "emit can be called in map only");
    }
    if (typeof value === "object" && value !== null) {
      value = driverOwnCopy(value);
    } else if (typeof value === "string" && value.length > 1024) {
      driverCharge(value.length);
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
      entry = driverOtherEntry(key, value);
    }
    if (entry !== undefined) {
      driverAdd(entry, value);
    }
    emits++;
    if ((emits & (EMITS_BETWEEN_LOOKS - 1)) === 0 && isFull()) {
      driverFlush();
    }
  }

  function driverOtherEntry(key, value) {
    if (key === undefined) {
      key = null;
    } else if (typeof key === "object" && key !== null) {
      key = driverOwnCopy(key);
    }
    const identity = keyOf(key);
    const entries = typeof identity === "number" ? numbers : others;
    const entry = entries.get(identity);
    if (entry === undefined) {
      entries.set(identity, new Entry(key, value));
    }
    return entry;
  }

  function driverReduceValues(key, values) {
    reduces++;
    reducing = true;
    const reduced = reduce(key, values);
    reducing = false;
    return typeof reduced === "object" && reduced !== null ? driverResultCopy(reduced) : reduced;
  }

  // A result may be an object that the function keeps and changes.
  function driverResultCopy(value) {
    return driverCopy(value, 0);
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
  function driverPutText(text) {
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
  function driverPutElement(name, value, isCopy) {
    const kind = at++;
    if (!driverPutText(name)) {
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
        if (!driverPutText(value)) {
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
        if (!isCopy || !driverPutPlain(value)) {
          return false;
        }
    }
    return at < BYTES;
  }

  function driverPutPlain(value) {
    if (
      typeof value !== "object" || prototypeOf(value) !== ObjectPrototype ||
      value[origin] !== undefined
    ) {
      return false;
    }
    const start = at;
    at += 4;
    for (const name of keysOf(value)) {
      if (!driverPutElement(name, value[name], true)) {
        return false;
      }
    }
    if (at >= BYTES) {
      return false;
    }
    driverEnd(start);
    return true;
  }

  // A place for a document.
  function driverBegin() {
    if (at > BYTES >> 1) {
      driverHand();
    }
    const start = at;
    at += 4;
    return start;
  }

  function driverEnd(start) {
    bytes[at++] = 0;
    view.setInt32(start, at - start, true);
  }

  // Hands over what is written.
  function driverHand() {
    if (at > 0) {
      takeWritten(at);
      at = 0;
    }
  }

  // Sends everything on as one sorted run and begins anew.
  function driverFlush() {
    for (const entries of [strings, numbers, others]) {
      for (const entry of entries.values()) {
        const value = driverReducedEntry(entry);
        driverPutPartial(entry.key, value === undefined ? null : value);
      }
    }
    driverHand();
    strings = new Map();
    numbers = new Map();
    others = new Map();
    endRun();
  }

  // `{_id: key, value}`, the most frequent kind, in one piece. False: it has to go another way.
  function driverPutTextAndNumber(key, value) {
    const length = key.length;
    const start = driverBegin();
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

  function driverPutPartial(key, value) {
    if (typeof key === "string" && typeof value === "number" && driverPutTextAndNumber(key, value)) {
      return;
    }
    const start = driverBegin();
    if (driverPutElement("_id", key, true) && driverPutElement("value", value, true)) {
      driverEnd(start);
    } else {
      at = start;
      take(key, value);
    }
  }

  // Reduces what belongs to each key, and finalizes it where this is the last word. `values` are those
  // of all keys, one key's after the other's, `counts` how many each has.
  function driverFinish(keys, counts, values, last) {
    for (let i = 0, from = 0; i < keys.length; i++) {
      const key = keys[i];
      const to = from + counts[i];
      let value = values[from];
      if (to - from > 1) {
        const own = [];
        for (let j = from; j < to; j++) {
          own.push(values[j]);
        }
        value = driverReduceValues(key, own);
      }
      from = to;
      if (last && finalize !== undefined) {
        reducing = true;
        value = finalize(key, value);
        reducing = false;
      }
      driverPutValue(value === undefined ? null : value);
    }
    driverHand();
  }

  function driverPutValue(value) {
    const start = driverBegin();
    if (driverPutElement("value", value, finalize === undefined)) {
      driverEnd(start);
    } else {
      at = start;
      driverHand();
      take(undefined, value);
    }
  }

  Object.defineProperty(driverEmit, "name", { value: "emit", configurable: true });
  Object.defineProperty(globalThis, "emit", { value: driverEmit, configurable: true, writable: true });

  return {
    setFunctions: function driverSetFunctions(given) {
      map = given.map;
      reduce = given.reduce;
      finalize = given.finalize;
      collated = given.collated;
    },
    // Where the map function may read anything: one whole object per document.
    mapDocuments: function driverMapDocuments(documents) {
      for (let i = 0; i < documents.length; i++) {
        documentBytes = 0;
        map.call(documents[i]);
      }
    },
    beginDocument: function driverBeginDocument() {
      documentBytes = 0;
    },
    flush: driverFlush,
    finish: driverFinish,
    emits: () => emits,
    reduces: () => reduces,
  };
});
