// Checks of the options that a program gives, when a client or middleware is made.

/** The options of an interface: for each name whether it takes a function alone. */
export type Options<T> = Readonly<Record<keyof T, boolean>>;

/** Throws a TypeError for an option that does not exist, with the nearest one, and for a value in place of a function. */
export function checkOptions<T extends object>(given: T, known: Options<Required<T>>): void {
  if (typeof given !== "object" || given === null) throw new TypeError(`options are an object, not ${given === null ? "null" : `a ${typeof given}`}`);
  for (const [name, value] of Object.entries(given)) {
    const isFunction = (known as Readonly<Record<string, boolean | undefined>>)[name];
    if (isFunction === undefined) throw new TypeError(`unknown option ${name}; did you mean ${nearest(name, Object.keys(known))}?`);
    if (isFunction && value !== undefined && value !== null && typeof value !== "function")
      throw new TypeError(`${name} is a function, as in { ${name}: (request) => … }, not a ${typeof value}`);
  }
}

/** The values of `onFailure`. */
export const ACTIONS = ["allow", "refuse"] as const;

/** Throws a TypeError, which names the option and the value, if that is none of the words. */
export function checkWord(option: string, given: unknown, words: readonly string[]): void {
  if (typeof given === "string" && words.includes(given)) return;
  const shown = typeof given === "string" ? JSON.stringify(given).slice(0, 99) : given === null ? "null" : `a ${typeof given}`;
  throw new TypeError(`${option} is ${words.join(" or ")}, not ${shown}`);
}

function nearest(name: string, known: readonly string[]): string {
  const [first = ""] = [...known].sort((a, b) => distance(name, a) - distance(name, b));
  return first;
}

/** The number of letters to insert, remove or replace, whatever their case. */
function distance(from: string, to: string): number {
  let row = [...Array(to.length + 1).keys()];
  for (const [i, letter] of [...from.toLowerCase()].entries()) {
    const next = [i + 1];
    for (const [j, other] of [...to.toLowerCase()].entries())
      next.push(Math.min((next[j] ?? 0) + 1, (row[j + 1] ?? 0) + 1, (row[j] ?? 0) + Number(letter !== other)));
    row = next;
  }
  return row.at(-1) ?? 0;
}
