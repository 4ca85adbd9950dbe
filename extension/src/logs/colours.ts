/** How characters are drawn. */
export interface ILook {
  /** Empty: as the rest of the page. */
  readonly colour: string;
  readonly isBold: boolean;
}

/** Characters that are drawn alike. */
export interface IRun {
  readonly text: string;
  readonly look: ILook;
}

export const PLAIN: ILook = { colour: '', isBold: false };

// What the server leaves in a log: `\x1b[1;31m`, and `\x1b[K`, which clears what a terminal has behind it.
// eslint-disable-next-line no-control-regex
const CODE = /\x1b\[(K|[\d;]*m)/;
// Black and white are those of the page: on one of its themes neither could be read.
const COLOURS = ['', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', ''];

/** Return the runs of a text that begins with a look, and the look with which what follows begins. */
export function runsOf(text: string, begin: ILook): { runs: IRun[]; end: ILook } {
  const runs: IRun[] = [];
  let look = begin;
  text.split(CODE).forEach((part, at) => {
    // texts, and codes between them
    if (at % 2 === 1) {
      look = part === 'K' ? look : after(look, part.slice(0, -1));
    } else if (part !== '') {
      runs.push({ text: part, look });
    }
  });
  return { runs, end: look };
}

/** Return a text without its colours. */
export function plain(text: string): string {
  return text
    .split(CODE)
    .filter((_, at) => at % 2 === 0)
    .join('');
}

// Backgrounds and what hides a text are left out: all of a log can be read.
function after(look: ILook, codes: string): ILook {
  let { colour, isBold } = look;
  const numbers = codes.split(';').map(Number);
  for (let at = 0; at < numbers.length; at += 1) {
    const number = numbers[at] ?? 0;
    if (number === 0) {
      ({ colour, isBold } = PLAIN);
    } else if (number === 1 || number === 22) {
      isBold = number === 1;
    } else if (number === 38 || number === 48) {
      // one of 256 colours, or of all; its numbers are no codes
      at += numbers[at + 1] === 2 ? 4 : 2;
    } else if ((number >= 30 && number <= 39) || (number >= 90 && number <= 97)) {
      colour = COLOURS[number % 10] ?? '';
    }
  }
  return { colour, isBold };
}
