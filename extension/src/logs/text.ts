import { PLAIN, plain, runsOf, type ILook } from './colours';

/** Characters that are kept: the end of a longer text. */
export const KEPT = 1 << 20;
// Characters of a piece: what is drawn again when something is added.
const PIECE = 1 << 15;

/** A piece of a text; it ends with a line, unless that is longer than a piece. */
export interface IPiece {
  readonly id: number;
  readonly text: string;
  /** The look with which it begins. */
  readonly look: ILook;
}

/** The end of a text that grows. */
export class TextEnd {
  /** What is kept; a piece that has not changed is the same object as before. */
  get pieces(): readonly IPiece[] {
    return this._pieces;
  }

  /** Whether what came first is not kept. */
  get isCut(): boolean {
    return this._isCut;
  }

  /** Add something at the end. */
  append(text: string): void {
    if (text === '') {
      return;
    }
    const last = this._pieces.at(-1);
    const pieces = this._pieces.slice(0, -1);
    let { id, look } = last ?? { id: 0, look: PLAIN };
    let rest = overwritten((last?.text ?? '') + text);
    while (rest.length > PIECE) {
      // at the end of a line, where there is one
      const cut = rest.lastIndexOf('\n', PIECE - 1) + 1 || PIECE;
      const piece = { id, text: rest.slice(0, cut), look };
      pieces.push(piece);
      look = runsOf(piece.text, look).end;
      rest = rest.slice(cut);
      id += 1;
    }
    if (rest !== '') {
      pieces.push({ id, text: rest, look });
    }
    this._pieces = this.trimmed(pieces);
  }

  /** Forget all, as there is a gap before what comes. */
  clear(isCut: boolean): void {
    this._pieces = [];
    this._isCut = isCut;
  }

  /** Return it without colours. */
  toString(): string {
    return plain(this._pieces.map(its => its.text).join(''));
  }

  private trimmed(pieces: IPiece[]): IPiece[] {
    let length = pieces.reduce((sum, its) => sum + its.text.length, 0);
    const first = pieces.findIndex(its => {
      const isKept = length <= KEPT;
      length -= its.text.length;
      return isKept;
    });
    this._isCut ||= first > 0;
    return first > 0 ? pieces.slice(first) : pieces;
  }

  private _pieces: readonly IPiece[] = [];
  private _isCut = false;
}

// What follows a carriage return takes the place of its line, as on a terminal: of a progress bar the last state is
// left. At the end of the text a carriage return waits for what follows.
function overwritten(text: string): string {
  return text
    .split(/\r*\n/)
    .map(line => line.slice(line.replace(/\r+$/, '').lastIndexOf('\r') + 1))
    .join('\n');
}
