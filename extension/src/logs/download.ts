import type { ILogSource } from './contract';

/** Have the browser save all of a log file as it is, part by part. */
export async function download(source: ILogSource, file: string, name: string): Promise<void> {
  const parts: string[] = [];
  let from = 0;
  for (;;) {
    const part = await source.part(file, from, true);
    parts.push(part.text);
    if (part.text === '' || part.next >= part.size) {
      break;
    }
    from = part.next;
  }
  const url = URL.createObjectURL(new Blob(parts, { type: 'text/plain' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}
