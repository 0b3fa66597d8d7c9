// What MongoDB's scripts find beside the types. Called once per context with `pause`, which waits for
// some milliseconds.
(function (pause) {
  "use strict";

  const { now } = Date;
  // A script can be ended between two pauses.
  const PAUSE_MILLISECONDS_MAX = 5;

  function define(target, functions) {
    for (const [name, value] of Object.entries(functions)) {
      Object.defineProperty(target, name, { value, writable: true, configurable: true });
    }
  }

  define(globalThis, {
    sleep(milliseconds) {
      if (arguments.length !== 1 || typeof milliseconds !== "number") {
        throw new Error("sleep takes a single numeric argument -- sleep(milliseconds)");
      }
      const end = now() + milliseconds;
      for (let left = milliseconds; left > 0; left = end - now()) {
        pause(Math.min(left, PAUSE_MILLISECONDS_MAX));
      }
    },
    printjson(value) {
      print(tojson(value));
    },
    printjsononeline(value) {
      print(tojsononeline(value));
    },
    assert(value, message) {
      if (!value) {
        throw new Error("assert failed" + (message === undefined ? "" : " : " + message));
      }
    },
    sortDoc(document) {
      const sorted = {};
      for (const name of Object.keys(document).sort()) {
        sorted[name] = document[name];
      }
      return sorted;
    },
  });
  define(Object, {
    merge(into, from) {
      return { ...into, ...from };
    },
    keySet(object) {
      return Object.keys(object);
    },
  });
  define(String.prototype, {
    ltrim() {
      return this.trimStart();
    },
    rtrim() {
      return this.trimEnd();
    },
    pad(length, right, character) {
      const fill = character || " ";
      return right ? this.padEnd(length, fill) : this.padStart(length, fill);
    },
  });
  define(Number.prototype, {
    toPercentStr() {
      return (this * 100).toFixed(2) + "%";
    },
    zeroPad(length) {
      return String(this).padStart(length, "0");
    },
  });
})
