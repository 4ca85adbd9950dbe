import type { ILogSource, IPart } from '../../src/logs/contract';

// Bytes that the server gives at a time.
const PART = 256 << 10;

/** The logs of a cluster on its server: plain ASCII files that can be written. */
export class FakeLogs implements ILogSource {
  readonly texts = new Map<string, string>();
  readonly asked: [file: string, from: number][] = [];
  listed = 0;
  trouble: Error | null = null;

  readonly files = () => {
    this.listed += 1;
    return this.told([...this.texts].map(([name, text]) => ({ name, size: text.length })));
  };

  readonly part = (file: string, from: number): Promise<IPart> => {
    this.asked.push([file, from]);
    const text = this.texts.get(file) ?? '';
    const begin = from < 0 ? Math.max(0, text.length + from) : Math.min(from, text.length);
    const read = text.slice(begin, begin + PART);
    return this.told({ text: read, next: begin + read.length, size: text.length });
  };

  readonly address = (file: string) => `/${file}`;

  write(file: string, text: string): void {
    this.texts.set(file, (this.texts.get(file) ?? '') + text);
  }

  private told<T>(value: T): Promise<T> {
    return this.trouble ? Promise.reject(this.trouble) : Promise.resolve(value);
  }
}
